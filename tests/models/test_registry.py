"""Models by name, and whether they fit the data. Nothing is downloaded."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import pytest
import torch
import torchvision
from torch import Tensor, nn

from madao.errors import ModelError, UnknownModelError
from madao.models import SmallCNN, WideResNet, build, check_head, known
from madao.models.registry import OWN


@pytest.mark.parametrize("name", OWN)
def test_every_own_name_builds(name: str) -> None:
    model = build(name, classes=7, channels=1, image_size=16)
    assert isinstance(model, SmallCNN if name == "small-cnn" else WideResNet)
    assert model.head.out_features == 7


def test_the_name_of_a_wide_resnet_gives_depth_and_width() -> None:
    model = build("wrn-10-3", classes=2)
    assert isinstance(model, WideResNet)
    assert (len(model.blocks), model.head.in_features) == (3, 192)


@pytest.mark.parametrize(("image_size", "kernel"), [(32, (3, 3)), (64, (3, 3)), (65, (7, 7))])
def test_the_stem_follows_the_image_size(image_size: int, kernel: tuple[int, int]) -> None:
    stem = build("resnet18", 2, channels=1, image_size=image_size).conv1
    assert isinstance(stem, nn.Conv2d)
    assert (stem.kernel_size, stem.in_channels) == (kernel, 1)


def test_the_stem_can_be_chosen() -> None:
    model = build("resnet18", 2, image_size=32, stem="imagenet")
    assert isinstance(model.maxpool, nn.MaxPool2d)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_torchvision(channels: int) -> None:
    model = build("mobilenet_v3_small", classes=6, channels=channels)
    assert isinstance(model, torchvision.models.MobileNetV3)
    assert model.eval()(torch.rand(2, channels, 32, 32)).shape == (2, 6)
    # An untrained stem has torchvision's own spread, whatever the channels: fan-out 16 × 3 × 3.
    assert model.features[0][0].weight.std().item() == pytest.approx((2 / 144) ** 0.5, rel=0.25)


@pytest.mark.parametrize("name", ["test_vit", "timm/test_vit", "resnet10t"])
def test_timm(name: str) -> None:
    pytest.importorskip("timm")
    model = build(name, classes=6, channels=1, image_size=48)
    assert type(model).__module__.startswith("timm.")
    assert model.eval()(torch.rand(2, 1, 48, 48)).shape == (2, 6)


def test_a_shared_name_is_torchvisions_unless_it_says_timm() -> None:
    pytest.importorskip("timm")
    assert isinstance(build("resnet18", 2), torchvision.models.ResNet)
    assert type(build("timm/resnet18", 2)).__module__.startswith("timm.")


def test_known_names() -> None:
    names = known()
    assert len(set(names)) == len(names)
    assert names[: len(OWN)] == list(OWN)
    assert {"resnet50", "mobilenet_v3_small"} < set(names)
    assert "inception_v3" not in names
    timm = pytest.importorskip("timm")
    assert {"test_vit", "timm/resnet18"} < set(names)
    assert names.index("mobilenet_v3_small") < names.index("test_vit")
    assert len(names) > len(timm.list_models())


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match="pip install timm"):
        build("timm/resnet10t", 10)
    with pytest.raises(UnknownModelError, match="pip install timm"):
        build("resnet10t", 10)
    assert "resnet18" in known()
    assert "resnet10t" not in known()


def test_without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torchvision", "timm"):  # timm needs torchvision itself
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelError, match="pip install torchvision"):
        build("resnet18", 10)
    assert known() == list(OWN)
    build("small-cnn", 10)


@pytest.mark.parametrize("name", ["resnet19", "timm/no-such", "wrn-28", "", "hf_hub:someone/something"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(UnknownModelError, match=rf"^unknown model '{name}'") as caught:
        build(name, classes=10)
    assert caught.value.name == name


def publish(monkeypatch: pytest.MonkeyPatch, fetch: Callable[[], nn.Module]) -> None:
    """Replace the download of torchvision's weights."""
    genuine = torchvision.models.get_model

    def get_model(name: str, weights: str | None, **settings: object) -> nn.Module:
        model: nn.Module = fetch() if weights == "DEFAULT" else genuine(name, weights=weights, **settings)
        return model

    monkeypatch.setattr(torchvision.models, "get_model", get_model)


def test_published_weights_get_a_fresh_head_and_a_summed_stem(monkeypatch: pytest.MonkeyPatch) -> None:
    published = torchvision.models.mobilenet_v3_small()
    publish(monkeypatch, lambda: published)
    model = build("mobilenet_v3_small", classes=6, channels=1, pretrained=True).eval()
    published.classifier[3] = model.get_submodule("classifier.3")
    assert published.classifier[3].out_features == 6
    grey = torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(model(grey), published.eval()(grey.expand(-1, 3, -1, -1)))


def test_timm_is_asked_for_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")
    asked: list[dict[str, object]] = []

    def create_model(name: str, **settings: object) -> nn.Module:
        asked.append({"name": name, **settings})
        return SmallCNN(6, channels=1)

    monkeypatch.setattr(timm, "create_model", create_model)
    build("timm/test_vit", 6, channels=1, pretrained=True)
    assert asked == [{"name": "test_vit", "pretrained": True, "num_classes": 6, "in_chans": 1, "img_size": 32}]


def test_a_failed_download_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> nn.Module:
        raise URLError("no\nnetwork")

    publish(monkeypatch, unreachable)
    with pytest.raises(ModelError, match=r"^the weights of squeezenet1_1 cannot be downloaded \(.*\); .* its path$"):
        build("squeezenet1_1", 10, pretrained=True)
    monkeypatch.setattr(pytest.importorskip("timm"), "create_model", unreachable)
    with pytest.raises(ModelError, match="weights of test_vit"):
        build("test_vit", 10, pretrained=True)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("small-cnn", {"classes": 1}, "classes must be at least 2, got 1"),
        ("small-cnn", {"channels": 0}, "channels must be at least 1, got 0"),
        ("resnet18", {"stem": "large"}, "stem must be auto, small or imagenet, got 'large'"),
        ("wrn-10-1", {"stem": "small"}, "choice of stem, not wrn-10-1; set `model.stem=auto`"),
        ("small-cnn", {"pretrained": True}, "small-cnn has no published weights; set `model.pretrained`"),
        ("wrn-10-1", {"pretrained": True}, "wrn-10-1"),
        ("resnet18", {"pretrained": True}, "resnet18"),
        ("inception_v3", {}, "inception_v3 is not supported"),
        ("vit_b_16", {"image_size": 30}, "vit_b_16 cannot be built for images of 30×30 .*indivisible by patch size"),
        ("small-cnn", {"image_size": 3}, "^the model cannot take images of 3×3×3 .*; choose a larger `data.size`"),
        ("squeezenet1_1", {"image_size": 8}, "3×8×8"),
    ],
)
def test_mistakes(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=rf"{message}[^\n]*$"):
        build(name, **{"classes": 2, **settings})


class Returns(nn.Module):
    """Gives the same for every batch."""

    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, images: Tensor) -> object:
        return self.output


def test_check_head() -> None:
    check_head(Returns(torch.zeros(2, 10)), classes=10, channels=3, image_size=8)
    check_head(Returns(torch.zeros(2, 11)), classes=10, channels=3, image_size=8)
    for output, message in (
        (torch.zeros(2, 9), "the model has 9 outputs, the data 10 classes"),
        (torch.zeros(2, 10, 1), r"returns the shape \[2, 10, 1\] for 2 images"),
        (torch.zeros(1, 10), r"\[1, 10\]"),
        ((torch.zeros(2, 10),), "returns a tuple, expected a tensor"),
        (SimpleNamespace(logits=torch.zeros(2, 10)), "SimpleNamespace"),
    ):
        with pytest.raises(ModelError, match=message):
            check_head(Returns(output), classes=10, channels=3, image_size=8)


def test_check_head_leaves_the_model_as_it_was() -> None:
    model = SmallCNN(10, channels=3).double()
    model.norm2.eval()
    modes = [module.training for module in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_head(model, classes=10, channels=3, image_size=8)
    with pytest.raises(ModelError):
        check_head(model, classes=10, channels=1, image_size=8)
    assert [module.training for module in model.modules()] == modes
    assert {True, False} == set(modes)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
