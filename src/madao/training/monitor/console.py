"""What a run shows while it runs: a progress bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from madao.policy import AugmentationPolicy, Policy
from madao.policy.describe import preferred


class Console:
    """Shows progress.

    Args:
        title: Before each line.
        total: Steps of the whole run.
        speaks: Whether anything is shown: of several processes only the first one speaks.
        stream: Where to. By default standard output.
        error: What the error is called.
    """

    def __init__(
        self, title: str, total: int, speaks: bool = True, stream: TextIO | None = None, error: str = "error"
    ) -> None:
        self.title, self.error = title, error
        self._rich = RichConsole(file=stream or sys.stdout, highlight=False, soft_wrap=True, quiet=not speaks)
        self._progress: Progress | None = None
        self._advised = False
        if self._rich.is_terminal and speaks:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=self._rich, refresh_per_second=4)
            self._task = self._progress.add_task(title, total=total, state="")

    def start(self, step: int) -> None:
        """Begin to show, at a step."""
        if self._progress is not None:
            self._progress.start()
            self._progress.update(self._task, completed=step)

    def stop(self) -> None:
        """Leave the terminal as it was."""
        if self._progress is not None:
            self._progress.stop()

    def step(self, step: int, loss: float, error: float, rate: float, policy: AugmentationPolicy | None) -> None:
        """Show where training is: shown on terminals only."""
        if self._progress is not None:
            state = f"loss {loss:.3f} · accuracy {100 * (1 - error):.1f} % · {rate:,.0f} images/s"
            favoured = favourite(policy)
            self._progress.update(self._task, completed=step, state=state + (f" · {favoured}" if favoured else ""))

    def epoch(
        self,
        row: Mapping[str, Any],
        epochs: int,
        rate: float,
        policy: AugmentationPolicy | None,
        own: float | None = None,
        due: bool = True,
    ) -> None:
        """One line for an epoch that is over.

        Args:
            row: Its row of metrics.csv.
            epochs: Of the run.
            rate: Images a second.
            policy: As it is now.
            own: The rate of a model that need not wait for images.
            due: Whether it was to be evaluated: where there is no bar, other epochs have no line.
        """
        parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['train_loss']:.3f}"]
        if not due and self._progress is None:
            return
        if row["validation_error"] is not None:
            parts.append(f"validation {self.error} {100 * row['validation_error']:.2f} %")
        parts.append(
            f"{rate:,.0f} images/s" if own is None or own < 1.1 * rate else f"{rate:,.0f} of {own:,.0f} images/s"
        )
        favoured = favourite(policy)
        if favoured:
            parts.append(favoured)
        self.say(f"{self.title}: " + " · ".join(parts))

    def advise(self, line: str | None) -> None:
        """A line of advice, if there is any: the first one only, of epochs that are much alike."""
        if line is not None and not self._advised:
            self._advised = True
            self.say(f"{self.title}: {line}")

    def say(self, line: str) -> None:
        """A line of text, above the bar where there is one."""
        self._rich.print(line, markup=False)


def favourite(policy: AugmentationPolicy | None) -> str:
    """The operation a learned policy now chooses most, or nothing."""
    if not isinstance(policy, Policy):
        return ""
    shares = policy.selection.detach().mean(0).tolist()
    if not preferred(shares):
        return ""
    most = max(shares)
    return f"favours {policy.operations[shares.index(most)].name} ({100 * most:.0f} %)"
