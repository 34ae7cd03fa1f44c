"""Measure every operation's influence at some epochs of a training, and make a policy that follows it.

    python benchmarks/looks.py benchmarks/results/worth.json policy.json      # a policy that follows all looks there
    python benchmarks/looks.py benchmarks/results/few-photos-gpu.json policy.json --since 50           # or some of them

A *look* is one such measurement at one epoch. The trainings are those of `worth.py`, `few_photos.py` and `horizon.py`:
CIFAR-10, 1,000 training and 1,000 validation images, WideResNet-10-2, 100 epochs; each takes four minutes of one core,
or some seconds of a GPU. (Looks in worth.json are older: each has the draws of the one before.)
"""

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from hardness import Network, Vector, by_operation, sample

from madao import Policy, Uniform
from madao.config.train_config import AugmentConfig, DataConfig, ModelConfig, TrainConfig
from madao.data import InMemoryImages
from madao.hypergrad import SameLoss
from madao.hypergrad.estimators.baselines import Batch
from madao.training.run.state import Run
from madao.training.splits import Splits
from madao.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results"
OPERATIONS = [operation.name for operation in Uniform().operations]
EPOCHS = 100
DEFLATED = "without 16 gradients of 64"
BEYOND = f"{DEFLATED}, beyond the loss"
EASE = "less loss"
COPIES = 6
"""Number of draws of every training image whose influence is measured."""
_PART = 250
"""Images per pass."""

Look = dict[str, dict[str, float]]
"""The influence of every operation along every q."""
Some = Callable[[int], tuple[Tensor, Tensor]]
"""A function that returns `count` training images, under other draws than the measured ones, and their labels."""
Further = Callable[[Network, Vector, Some], Mapping[str, Vector]]
"""More directions q, given v."""


def settings(root: str, folder: str, seed: int, epochs: int, device: str = "cpu", **augment: Any) -> TrainConfig:
    """Return the settings of a training. Every seed has its own images."""
    return TrainConfig(
        data=DataConfig(name="cifar10", root=root, max_images=2000, val_fraction=0.5, split_seed=seed),
        model=ModelConfig("wrn-10-2"),
        augment=AugmentConfig(flip=True, cutout=16, **augment),
        epochs=epochs,
        batch_size=64,
        precision="bf16",
        evaluate_every=epochs,
        checkpoint_every=epochs,
        logger="none",
        device=device,
        seed=seed,
        out=str(Path(folder) / "run"),
    )


def options(about: str | None, output: str, seeds: int, first: int = 0) -> argparse.ArgumentParser:
    """Return the command-line parser of a table of such trainings.

    Args:
        about: The script's docstring.
        output: The name of the file in benchmarks/results.
        seeds: The default number of seeds.
        first: The default first seed.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="the folder of CIFAR-10")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--first", type=int, default=first, help="the first seed")
    parser.add_argument("--seeds", type=int, default=seeds, help="number of seeds")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", metavar="FILE", type=Path, default=RESULTS / output)
    return parser


def quarters(epochs: int) -> tuple[int, ...]:
    """Return the epochs of looks."""
    return tuple(sorted({max(epochs * quarter // 4, 1) for quarter in (1, 2, 3, 4)}))


class Watched(Trainer):
    """A trainer that takes looks at the end of some epochs, without effect on the training."""

    def __init__(self, run: Run, epochs: Sequence[int] = (), further: Further | None = None) -> None:
        super().__init__(run)
        self.looks: dict[str, Look] = {}
        self._wanted, self._further = epochs, further

    def end_epoch(self) -> None:
        """Take a look if the epoch is one of those wanted."""
        super().end_epoch()
        if self.run.epoch in self._wanted:
            self.looks[str(self.run.epoch)] = look(self.run, self._further)


def look(run: Run, further: Further | None = None) -> Look:
    """Return influences in the training set at the present weights, under the uniform policy."""
    network, device = Network.of(run.network), run.device
    images, validation, standard = run.splits.train, run.splits.validation, run.base_augmentation
    assert isinstance(images, InMemoryImages)
    assert isinstance(validation, InMemoryImages)
    policy = Policy(seed=1).to(device)
    generator = torch.Generator(device).manual_seed(run.config.seed + 1000 * run.epoch)
    pixels, labels = images.images.repeat(COPIES, 1, 1, 1).to(device), images.labels.repeat(COPIES).to(device)
    with torch.no_grad():
        placed = standard.sample(pixels, generator)
        cropped = standard.before(pixels, placed).float() / 255
        draw = policy.sample(cropped, generator)
        inputs = standard.after(policy.augment(cropped, draw), placed)
        again = standard.after(policy.augment(cropped, policy.sample(cropped, generator)), placed)

    some = functools.partial(sample, again, labels, generator)
    v = network.gradient(standard.normalise(validation.images.to(device)), validation.labels.to(device))
    directions = {DEFLATED: network.deflated(v, [some(64) for _ in range(16)])}
    if further is not None:
        directions |= further(network, v, some)
    every = {name: network.influences(direction, inputs, labels, _PART) for name, direction in directions.items()}
    losses = _losses(network, inputs, labels)
    batch = Batch(every[DEFLATED], None, None, losses=losses)
    every[BEYOND], every[EASE] = batch.influence - SameLoss()(batch), -losses
    return {name: by_operation(influence, draw, policy) for name, influence in every.items()}


@torch.no_grad()
def _losses(network: Network, inputs: Tensor, labels: Tensor) -> Tensor:
    point, parts = tuple(network.params.values()), zip(inputs.split(_PART), labels.split(_PART), strict=True)
    return torch.cat([network.losses(point, *part) for part in parts])


def divided_anew(splits: Splits, seed: int) -> Splits:
    """Return the same photos with others for validation, drawn at random and not class by class."""
    train, validation = splits.train, splits.validation
    assert isinstance(train, InMemoryImages)
    assert isinstance(validation, InMemoryImages)
    photos = InMemoryImages(torch.cat([train.images, validation.images]), torch.cat([train.labels, validation.labels]))
    order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(seed))
    first, second = order[: len(train)], order[len(train) :]
    return dataclasses.replace(splits, train=photos.subset(first), validation=photos.subset(second))


def scores(looks: Sequence[Mapping[str, float]]) -> list[float]:
    """Return each operation's mean over looks. Each look, and the mean, have deviation 1 over operations."""
    every = [_standardised([look[name] for name in OPERATIONS]) for look in looks]
    return _standardised([statistics.fmean(of_one) for of_one in zip(*every, strict=True)])


def _standardised(values: Sequence[float]) -> list[float]:
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    return [(value - mean) / deviation for value in values]


def following(looks: Sequence[Mapping[str, float]]) -> Policy:
    """Return a policy with selection probabilities ∝ e^z, where z are the scores, the same at both stages."""
    policy = Policy()
    with torch.no_grad():
        policy.selection_logits.copy_(torch.tensor(scores(looks)))
    return policy


def looks_at(trainings: Iterable[Mapping[str, Look]], direction: str, since: float = 0) -> list[Mapping[str, float]]:
    """Return influences along one q, from an epoch on."""
    return [look[direction] for training in trainings for epoch, look in training.items() if int(epoch) >= since]


def all_looks(results: Mapping[str, Any], direction: str, since: int = 0) -> list[Mapping[str, float]]:
    """Return the influences of all trainings with looks in a table of cells."""
    return looks_at((cell["influence"] for cell in results["cells"].values() if "influence" in cell), direction, since)


def agreement(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean correlation of two `same-loss` looks in the second halves of trainings.

    Two at one training, at two on the same photos, and at two on others'.
    """
    late = results["epochs"] / 2
    looks = [
        (name, name.rsplit(" ", 1)[1], _standardised([rows[BEYOND][operation] for operation in OPERATIONS]))
        for name, cell in results["cells"].items()
        for epoch, rows in cell.get("influence", {}).items()
        if int(epoch) >= late
    ]
    found: dict[str, list[float]] = {}
    for (one, seed, first), (other, its, second) in itertools.combinations(looks, 2):
        kind = "one training" if one == other else "the same photos" if seed == its else "other photos"
        found.setdefault(kind, []).append(statistics.fmean(a * b for a, b in zip(first, second, strict=True)))
    return {kind: statistics.fmean(values) for kind, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a result file of worth.py or few_photos.py")
    parser.add_argument("policy", type=Path, help="the file to write, for --augment.method")
    parser.add_argument("--direction", default=BEYOND, help="the kind of influence, by its name in the results")
    parser.add_argument("--since", type=int, default=0, help="only looks at this epoch or later")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    looks = all_looks(results, arguments.direction, arguments.since)
    if not looks:
        parser.error(f"{arguments.results} has no looks since epoch {arguments.since}")
    policy = following(looks)
    policy.spec().save(arguments.policy)
    shares = sorted(zip(policy.selection[0].tolist(), OPERATIONS, strict=True), reverse=True)
    print(f"{len(looks)} looks: " + ", ".join(f"{name} {100 * share:.0f} %" for share, name in shares))
    said = ", ".join(f"{value:.2f} ({kind})" for kind, value in agreement(results).items())
    print(f"correlation of two looks beyond the loss, from half of the epochs on: {said}")


if __name__ == "__main__":
    main()
