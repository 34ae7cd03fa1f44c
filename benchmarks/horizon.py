"""Measure how many epochs ahead one must look to see what an operation is worth.

    python benchmarks/horizon.py --root FOLDER [--first 0] [--seeds 4] [--device cuda] [--jobs 2] [--output FILE]

Trainings are those of `looks.py`, under the uniform policy. Halfway, each training branches in fifteen ways with the
same random numbers: unchanged, and with each of the fourteen operations four times as likely. Each branch continues for
1, 2, 5, … epochs, in which the learning rate falls to zero. (At a constant learning rate the loss fluctuates by a tenth
from epoch to epoch, which hides the effect.) The prediction for a horizon is the drop of the validation and test loss
due to the likelier operation. The truth is the drop of the test error after the longest horizon. Influence predicts one
step ahead; it is measured halfway, and again after the learning rate has fallen.

The script prints the rank correlation of each prediction with the truth, over operations. It correlates predictions of
half of the seeds with the truth of the other half, and vice versa, because results of the same branches share their
noise. It also prints how well the predictions of the two halves agree. Cells that the output already has are not run
again.
"""

import contextlib
import dataclasses
import functools
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from cells import Cell, complete
from looks import OPERATIONS, Watched, look, options, settings

from madao import Policy
from madao.config.train_config import TrainConfig
from madao.training.builders.run import build_run
from madao.training.evaluate import evaluate_run
from madao.training.schedule import learning_rate
from madao.training.trainer import Trainer

AHEAD = (1, 2, 5, 10, 25, 50)
"""Epochs, of a hundred."""
ALIKE = "all alike"
_LIKELIER = math.log(4 * (len(OPERATIONS) - 1) / (len(OPERATIONS) - 4))
"""The logit that makes an operation four times as likely."""


class _Halfway(Exception):  # noqa: N818 (nothing went wrong)
    """The end of the first half."""


class FirstHalf(Watched):
    """A trainer that ends at its look and leaves its checkpoint."""

    def end_epoch(self) -> None:
        """End after the look."""
        super().end_epoch()
        if self.looks:
            raise _Halfway


class Branch(Trainer):
    """A trainer that continues from the checkpoint, with one or no operation likelier, while the rate falls to zero."""

    def __init__(self, config: TrainConfig, likelier: str, ahead: int) -> None:
        super().__init__(build_run(config, title=f"{likelier}, {ahead} ahead"))
        self._likelier, self._ahead = likelier, ahead

    def setup(self) -> None:
        """Make the operation likelier, and set the last epoch."""
        super().setup()
        run = self.run
        assert isinstance(run.policy, Policy)
        if self._likelier != ALIKE:
            with torch.no_grad():
                run.policy.selection_logits[:, OPERATIONS.index(self._likelier)] = _LIKELIER
        self._begun = run.step
        self._from = learning_rate(run.config.optimizer, run.epoch, run.config.epochs)
        run.config = dataclasses.replace(run.config, epochs=run.epoch + self._ahead)

    def train_step(self, images: Tensor, targets: Tensor) -> None:
        """Train at the rate of this branch."""
        run = self.run
        left = 1 - (run.step - self._begun) / (self._ahead * run.steps_per_epoch)
        now = dataclasses.replace(run.config.optimizer, schedule="constant", lr=self._from * left)
        run.config = dataclasses.replace(run.config, optimizer=now)
        super().train_step(images, targets)


def train(seed: int, epochs: int, root: str, device: str, operations: Sequence[str]) -> Cell:
    """Train one seed and all of its branches."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = settings(root, folder, seed, epochs, device, method="learned")
        never = dataclasses.replace(config.outer, warmup=2.0 * epochs)  # nothing is learned on the way
        config = dataclasses.replace(config, outer=never, checkpoint_every=epochs // 2)
        start = FirstHalf(build_run(config, title=f"seed {seed}"), (epochs // 2,))
        with contextlib.suppress(_Halfway):
            start.fit()
        found: Cell = {"influence": {"0": start.looks[str(epochs // 2)]}, "ahead": {}}
        for ahead in sorted({max(each * epochs // 100, 1) for each in AHEAD}):
            for name in (ALIKE, *operations):
                there = Path(folder) / f"{ahead}-{name}"
                shutil.copytree(str(config.out), there)
                branch = Branch(dataclasses.replace(config, out=str(there), resume=True), name, ahead)
                result, validation = branch.fit(), branch.run.splits.validation
                assert validation is not None
                found["ahead"].setdefault(name, {})[str(ahead)] = {
                    "test_loss": result.test_loss,
                    "test_error": result.test_error,
                    "validation_loss": evaluate_run(branch.run, validation).loss,
                }
                if name == ALIKE:
                    found["influence"][str(ahead)] = look(branch.run)
                shutil.rmtree(there)
    return found


def gains(cells: Iterable[Cell], epoch: str, kind: str) -> dict[str, float]:
    """Return how much each operation lowers a loss or error when it is likelier, averaged over seeds."""
    ways = [cell["ahead"] for cell in cells]
    operations = [name for name in ways[0] if name != ALIKE]
    return {
        name: statistics.fmean(way[ALIKE][epoch][kind] - way[name][epoch][kind] for way in ways) for name in operations
    }


def influence(cells: Sequence[Cell], epoch: str, kind: str) -> dict[str, float]:
    """Return the influence after some epochs of falling rate, averaged over seeds, of operations with branches."""
    operations = [name for name in cells[0]["ahead"] if name != ALIKE]
    return {name: statistics.fmean(cell["influence"][epoch][kind][name] for cell in cells) for name in operations}


def summary(cells: Mapping[str, Cell]) -> dict[str, Any]:
    """Return how much each operation lowers the final test error, and how well each horizon predicts it."""
    every = [cells[seed] for seed in sorted(cells, key=int)]
    epochs = [*every[0]["ahead"][ALIKE]]

    def truth(some: Sequence[Cell]) -> dict[str, float]:
        return gains(some, epochs[-1], "test_error")

    found: dict[str, Any] = {"points": {name: 100 * value for name, value in truth(every).items()}, "looks": {}}
    asked: dict[str, Callable[[Sequence[Cell]], dict[str, float]]] = {
        f"influence {kind}, after {epoch}": functools.partial(influence, epoch=epoch, kind=kind)
        for epoch, kinds in every[0]["influence"].items()
        for kind in kinds
    }
    for epoch in epochs:
        for kind in ("validation_loss", "test_loss", "test_error"):
            asked[f"{kind.replace('_', ' ')}, {epoch} ahead"] = functools.partial(gains, epoch=epoch, kind=kind)
    first, second = every[::2], every[1::2]
    for title, ask in asked.items() if second else ():
        both = _rank(ask(first), truth(second)), _rank(ask(second), truth(first))
        found["looks"][title] = {
            "rank_correlation": statistics.fmean(both),
            "of_halves": _rank(ask(first), ask(second)),
        }
    return found


def _rank(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    return float(stats.spearmanr([first[name] for name in second], [*second.values()]).statistic)


def main() -> None:
    parser = options(__doc__, "horizon.json", seeds=4)
    arguments = parser.parse_args()
    if arguments.epochs % 2:
        parser.error(f"--epochs must be even, got {arguments.epochs}")
    given = (arguments.epochs, arguments.root, arguments.device, OPERATIONS)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    wanted = {str(seed): (seed, *given) for seed in seeds}
    results = complete(arguments.output, arguments.epochs, wanted, train, summary, arguments.jobs)
    for name, points in sorted(results["summary"]["points"].items(), key=lambda item: -item[1]):
        print(f"{name:<14}{points:+6.2f} points")
    for title, row in results["summary"]["looks"].items():
        print(f"{title:<66}{row['rank_correlation']:+.2f}, halves {row['of_halves']:+.2f}")


if __name__ == "__main__":
    main()
