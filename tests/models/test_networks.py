"""madao's networks: sizes from the literature, values from an obvious float64 version."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.errors import ModelError
from madao.models import SmallCNN, SmallFCN, WideResNet
from madao.models.resnet import resnet


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("depth", "width", "expected"), [(28, 10, 36_479_194), (28, 2, 1_467_610), (40, 2, 2_243_546)])
def test_parameters_of_wide_resnets_are_those_of_the_literature(depth: int, width: int, expected: int) -> None:
    with torch.device("meta"):
        assert count(WideResNet(depth, width, classes=10)) == expected


def test_parameters_of_the_others() -> None:
    assert count(SmallCNN(10)) == 14_458
    assert count(resnet("resnet18", 10, 3, "small")) == 11_173_962


def reference(state: dict[str, Tensor], images: Tensor, training: bool) -> Tensor:
    """WRN-10-1, written out."""

    def norm_relu(x: Tensor, name: str) -> Tensor:
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        if training:
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        mean, variance, scale, shift = (
            v[:, None, None] for v in (mean, variance, state[f"{name}.weight"], state[f"{name}.bias"])
        )
        return ((x - mean) / (variance + 1e-5).sqrt() * scale + shift).clamp(min=0)

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2)

    x = conv(images, "stem")
    a = norm_relu(x, "blocks.0.norm1")
    x = x + conv(norm_relu(conv(a, "blocks.0.conv1"), "blocks.0.norm2"), "blocks.0.conv2")
    for block in ("blocks.1", "blocks.2"):
        a = norm_relu(x, f"{block}.norm1")
        residual = conv(norm_relu(conv(a, f"{block}.conv1", 2), f"{block}.norm2"), f"{block}.conv2")
        x = conv(a, f"{block}.shortcut", 2) + residual
    pooled = norm_relu(x, "norm").sum((2, 3)) / (x.shape[2] * x.shape[3])
    return pooled @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize("training", [True, False])
def test_wide_resnet_equals_the_reference(training: bool) -> None:
    torch.manual_seed(0)
    model = WideResNet(10, 1, classes=5, channels=2).double().train(training)
    # At their initial values, scale, shift and running statistics would hide mistakes.
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = torch.randn(3, 2, 11, 14, dtype=torch.float64)
    torch.testing.assert_close(model(images), reference(state, images, training))


def test_convolutions_begin_as_kaiming_says() -> None:
    torch.manual_seed(0)
    model = WideResNet(10, 4, classes=10)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.12)


def test_dropout_acts_in_training_alone() -> None:
    model = WideResNet(10, 1, classes=3, dropout=0.5)
    images = torch.randn(4, 3, 8, 8)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize("size", [8, 17, 32])
def test_output_shapes(size: int) -> None:
    assert WideResNet(10, 1, 7, channels=1)(torch.rand(2, 1, size, size)).shape == (2, 7)
    assert SmallCNN(7, channels=3, width=4)(torch.rand(2, 3, size, size)).shape == (2, 7)


def test_every_parameter_of_the_small_cnn_learns() -> None:
    model = SmallCNN(5)
    F.cross_entropy(model(torch.rand(8, 1, 16, 16)), torch.arange(8) % 5).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_stems() -> None:
    small, large = (resnet("resnet18", 4, 1, stem) for stem in ("small", "imagenet"))
    sides = []
    for model in (small, large):
        block = model.get_submodule("layer1")
        block.register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
        assert model.eval()(torch.rand(2, 1, 32, 32)).shape == (2, 4)
    assert sides == [32, 8]
    with pytest.raises(ModelError, match=r"set `model\.stem=imagenet`"):
        resnet("resnet18", 10, 3, "small", pretrained=True)


def test_mistakes() -> None:
    with pytest.raises(ModelError, match=r"depth of a wide resnet must be 6n \+ 4 .*, got 27"):
        WideResNet(27, 1, 10)
    for build, name in (
        (lambda: WideResNet(10, 0, 10), "wide resnet"),
        (lambda: SmallCNN(10, width=0), "small CNN"),
        (lambda: SmallFCN(10, width=0), "small FCN"),
    ):
        with pytest.raises(ModelError, match=f"width of a {name} must be at least 1, got 0"):
            build()
    with pytest.raises(ModelError, match="got 4"):
        WideResNet(4, 1, 10)
