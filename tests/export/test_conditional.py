"""Exports of conditional policies: what they draw, and which libraries refuse them."""

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from madao import ClassPolicy, ImagePolicy, load_policy
from madao.cli import main
from madao.export import TARGETS, export
from madao.export import albumentations as for_albumentations
from madao.export import kornia as for_kornia
from madao.export import timm as for_timm
from madao.export.single_image import ImageAugmenter, to_pil
from madao.policy import FrozenPolicy, PolicySpec
from tests.helpers.exported import load, write
from tests.helpers.policies import scattered, seeded

SHADES = torch.linspace(0.1, 1, 40).reshape(-1, 1, 1, 1) * torch.linspace(0.2, 1, 10)
IMAGES = (255 * torch.rand(40, 3, 12, 10, generator=seeded(0)) * SHADES).to(torch.uint8)


def by_class() -> PolicySpec:
    names = ("cat", 'a "dog"', "<owl>")
    return scattered(ClassPolicy(names, 2, operations=["Invert", "Rotate", "Brightness", "Posterize"]), 1.0).spec()


def by_image() -> PolicySpec:
    policy = ImagePolicy(2, 6, operations=["Invert", "Rotate", "Brightness", "Posterize", "Solarize"])
    policy.standardise(IMAGES)
    return scattered(policy, 2.0).spec()


SPECS = {"class": by_class(), "image": by_image()}


def draws(module: ModuleType, target: str, names: list[str], given: Any, count: int) -> list[list[tuple[str, bool]]]:
    """Return operation and whether it is applied, for each stage of each draw for a label or an image."""
    label = isinstance(given, int)
    shown = given if label else to_pil(given)
    if target == "python":
        transform = module.PolicyTransform(random.Random(0))
        drawn = [transform.draw(shown) for _ in range(count)]
        return [[(function.__name__, applied) for function, applied, _ in steps] for steps in drawn]
    torch.manual_seed(0)
    each: Any
    if target == "albumentations":
        module.transform.set_random_seed(0)
        data = {"image": np.asarray(shown)}
        each = [module.transform.get_params_dependent_on_data({}, data)["steps"] for _ in range(count)]
    elif target == "timm" or label:
        each = [module.transform.sample(shown) for _ in range(count)]
    else:
        each = module.transform.make_params([given.expand(count, -1, -1, -1)])["steps"]
    return [[(names[step[0]], step[1]) for step in steps] for steps in each]


@pytest.mark.parametrize(
    ("on", "target"),
    [
        *(("class", target) for target in ("torchvision", "python")),
        *(("image", target) for target in ("torchvision", "albumentations", "timm", "python")),
    ],
)
def test_exported_files_draw_with_the_probabilities_of_the_condition(on: str, target: str, tmp_path: Path) -> None:
    spec, count, pair = SPECS[on], 1500, IMAGES[[2, 37]]
    conditions: list[Any] = [0, 2] if on == "class" else [*pair]
    policy = load_policy(write(spec, "json", tmp_path))
    assert isinstance(policy, FrozenPolicy)
    selection, application, _ = (table.double() for table in policy.tables_of(pair, torch.tensor([0, 2])))
    selection /= selection.sum(-1, keepdim=True)
    names = [operation.name.lower() for operation in spec.operations]
    module = load(spec, target, tmp_path)
    for number in range(2):
        found = draws(module, target, names, conditions[number], count)
        for stage in range(2):
            drawn = [steps[stage][0] for steps in found]
            seen = np.array([drawn.count(name) for name in names])
            expected, other = (count * selection[stage, which].numpy() for which in (number, 1 - number))
            often = expected > 5
            rest = [[*values[often], values[~often].sum()] for values in (seen, expected)]
            kept = slice(None) if (~often).any() else slice(-1)
            assert stats.chisquare(rest[0][kept], rest[1][kept]).pvalue > 1e-4
            assert np.abs(seen - other).sum() > 3 * np.abs(seen - expected).sum()
            applied = sum(steps[stage][1] for steps in found)
            chance = float((selection * application).sum(-1)[stage, number])
            assert stats.binomtest(applied, count, chance).pvalue > 1e-5


@pytest.mark.parametrize(
    ("on", "target"), [*(("class", target) for target in ("albumentations", "kornia", "timm")), ("image", "kornia")]
)
def test_libraries_that_do_not_give_the_condition_refuse_the_policy(
    on: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, label = SPECS[on], "cat" if on == "class" else "shared"
    assert not (TARGETS[target].labels if on == "class" else TARGETS[target].sees_images)
    build: Any = {"albumentations": for_albumentations, "kornia": for_kornia, "timm": for_timm}[target].PolicyTransform
    for refused in (lambda: export(spec, target), lambda: build(spec)):
        with pytest.raises(ValueError, match=target):
            refused()
    path, out = tmp_path / "policy.json", tmp_path / "one.py"
    spec.save(path)
    assert main(["export", str(path), "--to", target, "--out", str(out)]) == 2
    assert f"--label {label}" in capsys.readouterr().err
    assert not out.exists()
    assert main(["export", str(path), "--to", target, "--out", str(out), "--label", label]) == 0
    assert spec.of_class(None if label == "shared" else label).dumps() in out.read_text()
    assert "image, label" not in capsys.readouterr().out


def test_one_class_or_the_shared_part_can_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, path, out = SPECS["class"], tmp_path / "policy.json", tmp_path / "one.json"
    spec.save(path)
    command = ["export", str(path), "--to=json", f"--out={out}", "--overwrite"]
    for label in (*spec.classes, "shared"):
        assert main([*command, "--label", label]) == 0
        assert PolicySpec.load(out) == spec.of_class(None if label == "shared" else label)
    assert main(command) == 0
    assert PolicySpec.load(out) == spec
    assert "policy(images, labels)" in capsys.readouterr().out
    SPECS["image"].save(tmp_path / "image.json")
    for given in ([*command, "--label=mouse"], ["export", str(tmp_path / "image.json"), *command[2:], "--label=cat"]):
        assert main(given) == 2
        assert "--label" in capsys.readouterr().err
    assert main(["export", "uniform", *command[2:], "--label=shared"]) == 2


def test_a_policy_that_uses_the_image_needs_it_to_draw() -> None:
    with pytest.raises(ValueError, match="image"):
        ImageAugmenter(SPECS["image"]).sample()
