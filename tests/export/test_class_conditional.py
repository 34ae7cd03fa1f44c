"""Exports of policies with classes."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from madao import ClassPolicy, load_policy
from madao.cli import main
from madao.export.torchvision import PolicyTransform
from tests.helpers.exported import assert_tidy, load, write
from tests.helpers.policies import inverting_class, scattered

NAMES = ("cat", 'a "dog"', "<owl>")


INVERTING = inverting_class(0, 3).spec()


def test_torchvision_finds_the_label_in_the_sample() -> None:
    transform = PolicyTransform(INVERTING)
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
        with pytest.raises(ValueError, match="label"):
            transform(*sample)
    with pytest.raises(ValueError, match="2 labels"):
        transform(images, labels[:2])
    with pytest.raises(ValueError, match="label"):
        transform(image, 3)


def test_the_python_file_takes_the_label(tmp_path: Path) -> None:
    module = load(INVERTING, "python", tmp_path)
    picture = Image.new("L", (5, 5), 10)
    assert [module.transform(picture, label).getpixel((0, 0)) for label in range(3)] == [245, 10, 10]
    assert module.CLASSES == ["0", "1", "2"]
    named = scattered(ClassPolicy(NAMES, 1)).spec()
    assert list(NAMES) == load(named, "python", tmp_path).CLASSES
    assert_tidy(INVERTING, tmp_path)


def test_the_policy_itself_takes_labels(tmp_path: Path) -> None:
    policy = load_policy(write(INVERTING, "json", tmp_path))
    images = torch.rand(3, 1, 6, 6)
    expected = torch.stack([1 - images[0], images[1], images[2]])
    torch.testing.assert_close(policy(images, torch.arange(3)), expected, rtol=0, atol=1e-6)


def test_a_preview_of_one_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, sheet = tmp_path / "policy.json", tmp_path / "sheet.png"
    INVERTING.save(path)
    arguments = ["preview", f"--policy={path}", f"--output={sheet}", "--rows=1", "--columns=2", "--size=32"]
    assert main(arguments) == 2
    assert "--label 0" in capsys.readouterr().err
    tiles = {}
    for label in ("0", "1"):
        assert main([*arguments, "--label", label]) == 0
        with Image.open(sheet) as picture:
            width = (picture.width - 8) // 3
            corners = [(8 + number * width, 8) for number in range(3)]
            tiles[label] = [picture.crop((x, y, x + 32, y + 32)).tobytes() for x, y in corners]
    assert tiles["1"][0] == tiles["1"][1] == tiles["1"][2]
    assert tiles["0"][1] == bytes(255 - value for value in tiles["0"][0])
