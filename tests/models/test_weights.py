"""Weights from a file."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor

from madao.errors import ModelError
from madao.models import SmallCNN, build
from madao.models.layers import heads, spread_channels


def save(content: object, path: Path) -> str:
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
def test_round_trip(tmp_path: Path, wrapper: str | None) -> None:
    trained = build("wrn-10-1", 5)
    state = trained.state_dict()
    path = save(state if wrapper is None else {wrapper: state, "epoch": 3}, tmp_path / "weights.pt")
    again = build("wrn-10-1", 5, pretrained=path).state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], state[key]) for key in state)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("small-cnn", "head."),
        ("resnet18", "fc."),
        ("mnasnet0_5", "classifier.1."),
        ("squeezenet1_1", "classifier.1."),
        ("timm/test_vit", "head."),
    ],
)
def test_a_head_for_other_classes_is_left_out(tmp_path: Path, name: str, head: str) -> None:
    if name.startswith("timm/"):
        pytest.importorskip("timm")
    state = build(name, 7).state_dict()
    torch.manual_seed(1)
    fresh = build(name, 4).state_dict()
    torch.manual_seed(1)
    loaded = build(name, 4, pretrained=save(state, tmp_path / "weights.pt")).state_dict()
    assert any(key.startswith(head) for key in loaded)
    for key, tensor in loaded.items():
        assert torch.equal(tensor, fresh[key] if key.startswith(head) else state[key]), key


def test_torchvisions_own_file_serves_one_channel(tmp_path: Path) -> None:
    published = torchvision.models.resnet18()
    path = save(published.state_dict(), tmp_path / "resnet18.pth")
    model = build("resnet18", 3, channels=1, pretrained=path, stem="imagenet")
    torch.testing.assert_close(model.state_dict()["conv1.weight"], published.conv1.weight.detach().sum(1, keepdim=True))
    assert torch.equal(model.state_dict()["layer4.1.conv2.weight"], published.layer4[1].conv2.weight)
    with pytest.raises(ModelError, match=r"conv1\.weight has the shape \[64, 3, 7, 7\].*\[64, 3, 3, 3\]; build with"):
        build("resnet18", 3, pretrained=path)


def test_heads_and_stems() -> None:
    network = SmallCNN(3)
    assert heads(network) == ("head",)
    network.pretrained_cfg = {"classifier": ("head", "conv3")}  # type: ignore[assignment]
    assert heads(network) == ("head", "conv3")
    network.pretrained_cfg = {"classifier": "conv2"}  # type: ignore[assignment]
    assert heads(network) == ("conv2",)
    # White images give what they gave, however many channels there are.
    weight = torch.rand(5, 3, 2, 2)
    for channels in (1, 2, 4):
        torch.testing.assert_close(spread_channels(weight, channels).sum(1), weight.sum(1))
        assert spread_channels(weight, channels).shape == (5, channels, 2, 2)


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_hostile_file_does_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = save({"state_dict": Hostile(trace)}, tmp_path / "weights.pt")
    with pytest.raises(ModelError, match=r"cannot read [^\n]*$"):
        build("small-cnn", 10, pretrained=path)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists(), "the file is not hostile, so the test showed nothing"


def test_files_that_are_no_state_dict(tmp_path: Path) -> None:
    text, empty = tmp_path / "text.pt", tmp_path / "empty.pt"
    text.write_text("no tensors here")
    empty.touch()
    for path, message in (
        (tmp_path / "absent.pt", "there is no weights file"),
        (tmp_path, "there is no weights file"),
        (text, "cannot read"),
        (empty, "cannot read"),
    ):
        with pytest.raises(ModelError, match=message):
            build("small-cnn", 10, pretrained=str(path))
    for content in (torch.zeros(3), {"head.weight": 1}, ["head.weight"]):
        with pytest.raises(ModelError, match="holds no state dict"):
            build("small-cnn", 10, pretrained=save(content, tmp_path / "content.pt"))


def test_state_dicts_of_another_model(tmp_path: Path) -> None:
    state: dict[str, Tensor] = dict(build("small-cnn", 10).state_dict())
    renamed = {f"module.{key}": tensor for key, tensor in state.items()}
    extra = {**state, "extra.weight": torch.zeros(1)}
    headless = {key: tensor for key, tensor in state.items() if not key.startswith("head")}
    partial = {key: tensor for key, tensor in state.items() if key != "conv2.weight"}
    wide = {**state, "conv2.weight": torch.zeros(128, 16, 3, 3)}
    for content, message in (
        (renamed, r"unexpected module\.conv1\.weight, .* \(and \d+ more\)"),
        (extra, r"unexpected extra\.weight;"),
        (headless, r"lacks head\.weight, head\.bias;"),
        (partial, r"lacks conv2\.weight;"),
        (wide, r"conv2\.weight has the shape \[128, 16, 3, 3\], the model's \[32, 16, 3, 3\]"),
        ({}, "lacks conv1"),
    ):
        with pytest.raises(ModelError, match=rf"{message}[^\n]*$"):
            build("small-cnn", 10, pretrained=save(content, tmp_path / "weights.pt"))


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    state = build("small-cnn", 5).state_dict()
    path = tmp_path / "weights.pt"
    save(state, path)
    data = bytearray(path.read_bytes())
    data[data.index(state["head.weight"].numpy().tobytes()) + 2] ^= 8
    path.write_bytes(data)
    with pytest.raises(ModelError, match="checksum"):
        build("small-cnn", 5, pretrained=str(path))
