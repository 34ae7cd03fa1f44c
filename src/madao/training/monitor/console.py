"""Progress of a run: a bar on a terminal, plain lines otherwise."""

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from madao.policy import AugmentationPolicy, Policy
from madao.policy.describe import preferred
from madao.text import printable
from madao.training.monitor.time_left import TimeLeft, describe_seconds

_ESTIMATE_AFTER, _WORTH_TELLING = 10.0, 60.0
"""Seconds of training behind the first estimate, and the shortest rest that it tells."""


class Console:
    """A console that shows the progress of a run of `total` steps, with its title before each line.

    Of several processes only the first one `speaks`. The stream is by default standard output.
    """

    def __init__(
        self,
        title: str,
        total: int,
        *,
        speaks: bool = True,
        stream: TextIO | None = None,
        metric_name: str = "error",
        train_metric_name: str = "error",
    ) -> None:
        self.title, self.metric_name, self.train_metric_name = title, metric_name, train_metric_name
        self._rich = RichConsole(file=stream or sys.stdout, highlight=False, soft_wrap=True, quiet=not speaks)
        self._progress: Progress | None = None
        self._advised = self._estimated = False
        self.clock = TimeLeft(total)
        self._resumed = False
        if self._rich.is_terminal and speaks:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=self._rich, refresh_per_second=4)
            self._task = self._progress.add_task(escape(printable(title)), total=total, state="")

    def start(self, step: int) -> None:
        """Show the bar and start the clock, at a step."""
        self.clock.start(step)
        self._resumed = step > 0
        if self._progress is not None:
            self._progress.start()
            self._progress.update(self._task, completed=step)

    def stop(self) -> None:
        """Remove the bar."""
        if self._progress is not None and self._progress.live.is_started:
            self._progress.stop()

    def step(self, step: int, loss: float, error: float, rate: float, policy: AugmentationPolicy | None) -> None:
        """Update the bar. Without one, tell once how long the run will take, if it is not short."""
        left = self.clock.left(step)
        if self._progress is None and not self._estimated and left is not None and self.clock.seconds > _ESTIMATE_AFTER:
            self._estimated = True
            if left > _WORTH_TELLING:
                self.say(f"about {describe_seconds(left)} left")
        if self._progress is not None:
            state = f"loss {loss:.3f} · {self.train_metric_name} {100 * error:.1f} % · {rate:,.0f} images/s"
            favoured = favourite(policy)
            self._progress.update(self._task, completed=step, state=state + (f" · {favoured}" if favoured else ""))

    def epoch(
        self,
        row: Mapping[str, Any],
        epochs: int,
        rate: float,
        policy: AugmentationPolicy | None,
        model_rate: float | None = None,
        evaluated: bool = True,
    ) -> None:
        """Show a line for an epoch that is over, from its row of metrics.csv.

        Without a bar, only epochs that were `evaluated` have a line. `rate` is images per second, and `model_rate` that
        of a model that never waits for images, if it is known.
        """
        parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['train_loss']:.3f}"]
        if not evaluated and self._progress is None:
            return
        if row["validation_error"] is not None:
            parts.append(f"validation {self.metric_name} {100 * row['validation_error']:.2f} %")
        parts.append(
            f"{rate:,.0f} images/s"
            if model_rate is None or model_rate < 1.1 * rate
            else f"{rate:,.0f} of {model_rate:,.0f} images/s"
        )
        favoured = favourite(policy)
        if favoured:
            parts.append(favoured)
        left = self.clock.left(row["step"])
        if row["epoch"] == epochs:
            since = " since it resumed" if self._resumed else ""
            parts.append(f"took {describe_seconds(self.clock.seconds)}{since}")
        elif left is not None:
            parts.append(f"about {describe_seconds(left)} left")
        self.say(" · ".join(parts))

    def advise(self, line: str | None) -> None:
        """Show the first advice of a run, if any. Later epochs would mostly repeat it."""
        if line is not None and not self._advised:
            self._advised = True
            self.say(line)

    def say(self, line: str) -> None:
        """Show a line after the title, above the bar if there is one."""
        self._rich.print(printable(f"{self.title}: {line}"), markup=False)


def favourite(policy: AugmentationPolicy | None) -> str:
    """Return the operation that a learned policy prefers, and its share; empty if it prefers none."""
    if not isinstance(policy, Policy):
        return ""
    shares = policy.selection.detach().mean(0).tolist()
    if not preferred(shares):
        return ""
    most = max(shares)
    return f"favours {policy.operations[shares.index(most)].name} ({100 * most:.0f} %)"
