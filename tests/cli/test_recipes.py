"""Every recipe parses, builds its model and trains on fake data of its shape."""

import dataclasses
from pathlib import Path

import pytest
import torch

from madao.cli import main
from madao.cli.recipes import FOLDER, METHODS, paper_numbers
from madao.cli.train import read_config
from madao.data import InMemoryImages
from madao.models import WideResNet, build
from madao.training.builders.run import build_run
from madao.training.splits import Splits
from madao.training.trainer import Trainer

RECIPES = sorted(path.stem for path in FOLDER.glob("*.yaml"))

# Classes, side of the stored images, and the numbers of the paper's tables.
PAPER = {
    "cifar10-wrn-28-2": (10, 32, {"base": "4.8", "autoaugment": "4.7", "randaugment": "4.7", "learned": "4.6"}),
    "cifar10-wrn-40-2": (10, 32, {"base": "4.5", "autoaugment": "4.3", "randaugment": "4.3", "learned": "4.2"}),
    "cifar10-wrn-28-10": (10, 32, {"base": "3.4", "autoaugment": "3.1", "randaugment": "3.1", "learned": "3.1"}),
    "cifar10-resnet18": (10, 32, {"base": "5.2", "autoaugment": "4.5", "randaugment": "4.5", "learned": "4.4"}),
    "cifar100-wrn-28-2": (100, 32, {"base": "24.8", "autoaugment": "24.0", "randaugment": "24.0", "learned": "23.9"}),
    "svhn-wrn-28-2": (10, 32, {"base": "2.9", "randaugment": "2.6", "learned": "2.5"}),
    "imagenet-resnet50": (1000, 256, {"base": "23.7/6.9", "randaugment": "22.5/6.4", "learned": "23.0/6.6"}),
    "imagenet-moco-resnet50": (1000, 256, {"base": "42.1/19.4", "randaugment": "39.6/17.6", "learned": "39.6/17.7"}),
    "flowers102-resnet18": (102, 256, {"base": "10.7", "randaugment": "8.5", "learned": "7.5"}),
    "oxford-pets-resnet18": (37, 256, {"base": "15.0", "randaugment": "13.4", "learned": "12.5"}),
    "fgvc-aircraft-resnet18": (70, 256, {"base": "12.8", "randaugment": "9.7", "learned": "8.7"}),
    "stanford-cars-resnet18": (196, 256, {"base": "14.2", "randaugment": "11.3", "learned": "10.8"}),
}


# Not in the paper: classes and side of the stored images.
OWN: dict[str, tuple[int, int, dict[str, str]]] = {
    "cifar10-moco-resnet18": (10, 32, {}),
    "cifar10-wrn-28-2-plus": (10, 32, {}),
    "finetune": (7, 256, {}),
}
ALL = {**PAPER, **OWN}


def test_there_is_one_for_each_row_of_the_tables() -> None:
    assert set(RECIPES) == set(ALL)


@pytest.mark.parametrize("name", RECIPES)
def test_numbers_and_header(name: str) -> None:
    assert paper_numbers(FOLDER / f"{name}.yaml") == ALL[name][2]
    text = (FOLDER / f"{name}.yaml").read_text()
    assert f"madao train --recipe {name} --data.root FOLDER" in text


@pytest.mark.parametrize("name", sorted(PAPER))
def test_the_appendix(name: str) -> None:
    config = read_config(["--recipe", name])
    outer, optimizer = config.outer, config.optimizer
    assert (outer.every, outer.warmup, outer.steps, outer.scale, outer.lr) == (30, 20, 5, 1e-3, 1e-2)
    assert (outer.estimator, outer.solver, outer.optimizer) == ("relaxed", "neumann", "rmsprop")
    assert config.augment.stages == 2
    assert config.data.val_fraction == (0.01 if name.startswith("imagenet") else 0.1)
    expected = {
        "cifar": (200, 128, 0.1, 5e-4, "cosine", []),
        "svhn": (160, 128, 5e-3, 1e-4, "step", [80, 120]),
        "imagenet": (180, 1024, 0.4, 1e-4, "step", [60, 120, 160]),
        "imagenet-moco-resnet50": (100, 512, 0.06, 1e-4, "step", [60, 80]),
    }.get(name if "moco" in name else name.split("-")[0].rstrip("10"), (200, 64, 0.1, 5e-4, "cosine", []))
    found = (config.epochs, config.batch_size, optimizer.lr, optimizer.weight_decay)
    assert (*found, optimizer.schedule, optimizer.milestones) == expected
    assert optimizer.momentum == 0.9
    assert (config.task.name == "moco") == ("moco" in name)
    assert (config.task.queue, config.task.version) == (65_536, "v1")
    assert config.augment.cutout == (16 if PAPER[name][1] == 32 else 0)
    assert config.augment.flip is (not name.startswith("svhn"))


LARGE = ("cifar10-wrn-28-10", "imagenet-moco-resnet50", "imagenet-resnet50")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in RECIPES]
)
def test_it_builds_and_trains_two_steps_with_an_outer_step(name: str, tmp_path: Path) -> None:
    classes, stored, _ = ALL[name]
    many = 8 if name == "cifar10-moco-resnet18" else 2  # two images cannot be split by eight
    size = 32 if stored == 32 else 64  # half a minute less than 224, through the same code
    generator = torch.Generator().manual_seed(0)
    side = stored if stored == 32 else 73

    def fake(count: int) -> InMemoryImages:
        images = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
        return InMemoryImages(images, torch.randint(0, classes, (count,), generator=generator))

    config = read_config(["--recipe", name, "--out", str(tmp_path / "run"), "--device", "cpu"])
    model = dataclasses.replace(config.model, stem="imagenet" if "resnet" in name and stored != 32 else "auto")
    if model.pretrained:  # published weights are not at hand
        model = dataclasses.replace(model, pretrained=str(tmp_path / "weights.pt"))
        torch.save(build(str(model.name), 1000, 3, size).state_dict(), str(model.pretrained))
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, size=size),
        model=model,
        outer=dataclasses.replace(config.outer, every=2, warmup=0, steps=1),
        evaluate_every=1,
        task=dataclasses.replace(config.task, bn_splits=config.task.bn_splits if many > 2 else 1),
        batch_size=many,
        epochs=1,
        logger="none",
    )
    data = fake(2 * many), fake(4), fake(2)
    names = tuple(str(label) for label in range(classes))
    splits = Splits(config.data.name or "", names, *data, True, size, (0.5,) * 3, (0.25,) * 3, None)
    run = build_run(config, splits)
    if "wrn" in name:
        assert isinstance(run.network, WideResNet)
    Trainer(run).fit()
    assert run.step == 2
    assert run.outer_loop is not None
    # On two images the curvature may be too much for the series: then it says so and leaves the policy alone.
    assert run.outer_loop.outer.updates + run.outer_loop.outer.skipped == 1


def test_the_list_shows_every_recipe_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    printed = capsys.readouterr().out
    for method in METHODS:
        assert method in printed
    for name, (_, _, numbers) in PAPER.items():
        line = next(line for line in printed.splitlines() if line.split()[:1] == [name])
        assert all(number in line for number in numbers.values())
    for name in OWN:
        assert f"\n  {name}: " in printed
    for shown in (["svhn-wrn-28-2"], ["--show", "svhn-wrn-28-2"]):
        assert main(["recipes", *shown]) == 0
        assert "milestones: [80, 120]" in capsys.readouterr().out
