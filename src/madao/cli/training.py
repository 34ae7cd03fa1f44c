"""The training of `madao train`, with its first and last lines."""

import shlex
import signal
from pathlib import Path

from madao.cli import say
from madao.config.train_config import TrainConfig
from madao.distributed.group import ProcessGroup
from madao.errors import SharedError, UserError
from madao.policy.describe import preferred
from madao.training.builders.run import build_run
from madao.training.interrupt import Interrupted
from madao.training.monitor.advice import describe_run, model_advice
from madao.training.run.result import Result
from madao.training.trainer import Trainer


def train(config: TrainConfig) -> None:
    """Train, and print the result with the next commands. Of several processes, only the first reports errors."""
    try:
        run = build_run(config)
        if run.ranks.is_first:
            for line in describe_run(run):
                say(line)
        result = _fit(Trainer(run))
    except (UserError, Interrupted) as error:
        ranks = ProcessGroup.current()
        if ranks.is_first:
            raise
        if not isinstance(error, SharedError | Interrupted):
            raise UserError(f"process {ranks.rank} of {ranks.world}: {error}") from None
        # The first process reports it.
        raise SystemExit(error.exit_code if isinstance(error, Interrupted) else 2) from None
    if ProcessGroup.current().is_first:
        from madao.report.run import read_run  # slow to import

        lines = summary(result, config.outer.learn == "strength", read_run(Path(result.out)).unlearned)
        if (advice := model_advice(run)) is not None:
            lines.insert(1, advice)
        for line in lines:
            say(line)


def _fit(trainer: Trainer) -> Result:
    """Train, and tell how to resume if a signal stops the run."""
    directory = trainer.run.directory
    try:
        return trainer.fit()
    except Interrupted as stop:
        raise Interrupted(stop.number, f"{stop}; {_how_to_resume(directory.path)}") from None
    except KeyboardInterrupt:  # outside a training step, or a second Ctrl-C
        if directory.saved_config() is None:
            raise
        kept = "there is no checkpoint yet" if directory.checkpoints.empty else "the last checkpoint is kept"
        raise Interrupted(signal.SIGINT, f"stopped immediately, {kept}; {_how_to_resume(directory.path)}") from None


def _how_to_resume(path: Path) -> str:
    return f"resume with: madao train --out {shlex.quote(str(path))} --resume"


def summary(result: Result, equal_selection: bool = False, unlearned: str | None = None) -> list[str]:
    """Return the last lines of `madao train`: the result and the next commands.

    Args:
        result: The result of the run.
        equal_selection: Whether the settings keep all operations equally likely (`outer.learn=strength`).
        unlearned: The reason why the policy did not change although it should have.
    """
    measured = {"test": result.test_error, "validation": result.validation_error}
    known = {split: error for split, error in measured.items() if error is not None}
    errors = ", ".join(f"{split} {result.error} {100 * error:.2f} %" for split, error in known.items())
    lacking = "; no test set" if result.test_error is None else ""
    lines = [f"{errors or 'trained, nothing measured'} (epoch {result.epoch}{lacking})"]
    if unlearned is not None:
        lines.append(f"the policy did not change: {unlearned}")
    elif result.policy and equal_selection:
        lines.append("the policy learned how often and how strongly; operations are equally likely, as set")
    elif result.policy and not preferred(result.policy.values()):
        lines.append(f"the policy prefers hardly any operation; its most frequent ones are {result.favoured(2)}, …")
    elif result.policy:
        lines.append(f"the policy's most frequent operations are {result.favoured(4)}, …")
    out = shlex.quote(result.out)
    lines.append(f"see the run:     madao report {out}")
    if result.policy and unlearned is None:
        lines.append(f"export policy:   madao export {out} --to torchvision")
    if known:
        split = "" if "test" in known else " --split validation"
        lines.append(f"evaluate again:  madao evaluate {out}{split}")
    return lines
