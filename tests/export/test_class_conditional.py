"""Exports of policies with classes."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from madao import ClassPolicy, PolicySpec, load_policy
from madao.cli import main
from madao.export import TARGETS, export
from madao.export import albumentations as for_albumentations
from madao.export import kornia as for_kornia
from madao.export import timm as for_timm
from madao.export.torchvision import PolicyTransform
from tests.helpers.exported import assert_tidy, load, write
from tests.helpers.policies import scattered

NAMES = ("cat", 'a "dog"', "<owl>")


def uneven() -> PolicySpec:
    policy = ClassPolicy(NAMES, 2, operations=["Invert", "Rotate", "Brightness", "Posterize"])
    return scattered(policy, 1.0).spec()


SPEC = uneven()


def always() -> PolicySpec:
    """The first class is inverted, the second left alone, of the third the colours are turned around twice."""
    policy = ClassPolicy(3, 2, operations=["Invert", "Equalize"])
    with torch.no_grad():
        policy.selection_logits[:, 0] = 50
        gates = policy.get_parameter("application_deviations")
        gates[:] = -50
        gates[0, [0, 2]] = 50
        gates[1, 2] = 50
    return policy.spec()


def draws(target: str, folder: Path, label: int, count: int) -> list[list[tuple[str, bool]]]:
    module = load(SPEC, target, folder)
    if target == "python":
        transform = module.PolicyTransform(random.Random(0))
        drawn = [transform.draw(label) for _ in range(count)]
        return [[(function.__name__, applied) for function, applied, _ in steps] for steps in drawn]
    torch.manual_seed(0)
    names = [operation.name.lower() for operation in SPEC.operations]
    drawn = [module.transform.sample(label) for _ in range(count)]
    return [[(names[step.operation], step.applied) for step in steps] for steps in drawn]


@pytest.mark.parametrize("target", ["torchvision", "python"])
def test_exported_files_draw_with_the_probabilities_of_the_class(target: str, tmp_path: Path) -> None:
    count = 4000
    selection, application, _ = SPEC.tables(torch.float64)
    for label in range(3):
        found = draws(target, tmp_path, label, count)
        for stage in range(2):
            names = [steps[stage][0] for steps in found]
            seen = [names.count(operation.name.lower()) for operation in SPEC.operations]
            expected = (count * selection[stage, label]).tolist()
            assert stats.chisquare(seen, expected).pvalue > 1e-3
            other = (count * selection[stage, (label + 1) % 3]).tolist()
            assert stats.chisquare(seen, other).pvalue < 1e-6
            applied = sum(steps[stage][1] for steps in found)
            chance = float((selection * application).sum(-1)[stage, label])
            assert stats.binomtest(applied, count, chance).pvalue > 1e-4


def test_torchvision_finds_the_label_in_the_sample() -> None:
    transform = PolicyTransform(always())
    image = torch.rand(3, 6, 6)
    for label, expected in enumerate((1 - image, image, image)):
        for given in (label, torch.tensor(label)):
            found, back = transform(image, given)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
            assert back is given
        found = transform({"image": tv_tensors.Image(image), "label": label, "name": "x", "box": 1.5})
        torch.testing.assert_close(found["image"].as_subclass(Tensor), expected, rtol=0, atol=1e-6)
        assert (found["label"], found["name"], found["box"]) == (label, "x", 1.5)
    picture = Image.new("L", (5, 5), 10)
    assert v2.Compose([transform, v2.Identity()])(picture, 0)[0].getpixel((0, 0)) == 245
    images, labels = torch.rand(3, 1, 6, 6), torch.tensor([1, 0, 1])
    found, _ = transform(images, labels)
    torch.testing.assert_close(found, torch.stack([images[0], 1 - images[1], images[2]]), rtol=0, atol=1e-6)
    for sample in ((image,), (image, 1, 2), (image, "cat"), (image, True), (image, torch.rand(3))):
        with pytest.raises(ValueError, match="needs one label in the sample"):
            transform(*sample)
    with pytest.raises(ValueError, match="there are 3 images in the sample, but 2 labels"):
        transform(images, labels[:2])
    with pytest.raises(ValueError, match="a label must lie in 0 to 2, got 3"):
        transform(image, 3)


def test_the_python_file_takes_the_label(tmp_path: Path) -> None:
    module = load(always(), "python", tmp_path)
    picture = Image.new("L", (5, 5), 10)
    assert [module.transform(picture, label).getpixel((0, 0)) for label in range(3)] == [245, 10, 10]
    assert module.CLASSES == ["0", "1", "2"]
    assert list(NAMES) == load(SPEC, "python", tmp_path).CLASSES
    assert_tidy(always(), tmp_path)


def test_the_policy_itself_takes_labels(tmp_path: Path) -> None:
    policy = load_policy(write(always(), "json", tmp_path))
    images = torch.rand(3, 1, 6, 6)
    expected = torch.stack([1 - images[0], images[1], images[2]])
    torch.testing.assert_close(policy(images, torch.arange(3)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("target", ["albumentations", "kornia", "timm"])
def test_libraries_without_labels_refuse_policies_with_classes(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not TARGETS[target].labels
    build: Any = {"albumentations": for_albumentations, "kornia": for_kornia, "timm": for_timm}[target].PolicyTransform
    for refused in (lambda: export(SPEC, target), lambda: build(SPEC)):
        with pytest.raises(ValueError, match=f"{target}'s transforms see no label; export to torchvision, python or"):
            refused()
    path = tmp_path / "policy.json"
    SPEC.save(path)
    out = tmp_path / "one.py"
    assert main(["export", str(path), "--to", target, "--out", str(out)]) == 2
    assert "--label cat" in capsys.readouterr().err
    assert not out.exists()
    assert main(["export", str(path), "--to", target, "--out", str(out), "--label", "cat"]) == 0
    assert SPEC.of_class("cat").dumps() in out.read_text()
    assert "image, label" not in capsys.readouterr().out


def test_one_class_or_the_shared_part_can_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "policy.json", tmp_path / "one.json"
    SPEC.save(path)
    for label in (*NAMES, "shared"):
        assert main(["export", str(path), "--to=json", f"--out={out}", "--overwrite", "--label", label]) == 0
        assert PolicySpec.load(out) == SPEC.of_class(None if label == "shared" else label)
    assert main(["export", str(path), "--to=json", f"--out={out}", "--overwrite"]) == 0
    assert PolicySpec.load(out) == SPEC
    assert "policy(images, labels)" in capsys.readouterr().out
    assert main(["export", str(path), "--to=json", f"--out={out}", "--overwrite", "--label=mouse"]) == 2
    assert "--label: unknown class 'mouse'; this policy has cat, " in capsys.readouterr().err
    assert main(["export", "uniform", "--to=json", f"--out={out}", "--overwrite", "--label=shared"]) == 2
    assert "unknown class 'shared'; this policy has none" in capsys.readouterr().err


def test_a_preview_of_one_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, sheet = tmp_path / "policy.json", tmp_path / "sheet.png"
    always().save(path)
    arguments = ["preview", f"--policy={path}", f"--output={sheet}", "--rows=1", "--columns=2", "--size=32"]
    assert main(arguments) == 2
    assert "has a policy for each class; add --label 0, for example, or --label shared" in capsys.readouterr().err
    tiles = {}
    for label in ("0", "1"):
        assert main([*arguments, "--label", label]) == 0
        with Image.open(sheet) as picture:
            width = (picture.width - 8) // 3
            corners = [(8 + number * width, 8) for number in range(3)]
            tiles[label] = [picture.crop((x, y, x + 32, y + 32)).tobytes() for x, y in corners]
    assert tiles["1"][0] == tiles["1"][1] == tiles["1"][2]
    assert tiles["0"][1] == bytes(255 - value for value in tiles["0"][0])
