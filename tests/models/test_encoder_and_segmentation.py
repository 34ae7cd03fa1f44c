"""Models of MoCo and segmentation."""

from pathlib import Path

import pytest
import torch

from madao.errors import ModelError, UnknownModelError
from madao.models import SmallFCN, build, build_dense, build_encoder, known_dense
from madao.models.encoder import SplitBatchNorm


def test_a_small_fcn_gives_logits_for_every_pixel_and_sees_far() -> None:
    torch.manual_seed(0)
    model = SmallFCN(4, 1).eval().double()
    image = torch.rand(1, 1, 40, 40, dtype=torch.float64, requires_grad=True)
    logits = model(image)
    assert logits.shape == (1, 4, 40, 40)
    (reached,) = torch.autograd.grad(logits[0, :, 20, 20].sum(), image)
    rows = reached[0, 0].abs().sum(1).nonzero().flatten()
    assert 27 <= int(rows.max() - rows.min()) + 1 <= 32


def test_models_of_torchvision_give_masks() -> None:
    model = build_dense("lraspp_mobilenet_v3_large", 5, 1, 64)
    assert model.eval()(torch.zeros(1, 1, 64, 64)).shape == (1, 5, 64, 64)
    assert {"small-fcn", "fcn_resnet50", "deeplabv3_resnet50"} <= set(known_dense())
    with pytest.raises(UnknownModelError):
        build_dense("resnet18", 5)
    with pytest.raises(ModelError, match="small-fcn has no published weights"):
        build_dense("small-fcn", 5, pretrained=True)


def test_weights_of_a_file_are_loaded(tmp_path: Path) -> None:
    model = build_dense("small-fcn", 3, 1, 24)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = build_dense("small-fcn", 3, 1, 24, pretrained=str(tmp_path / "weights.pt"))
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


@pytest.mark.parametrize(("name", "width"), [("small-cnn", 32), ("wrn-16-4", 256), ("resnet18", 512)])
@pytest.mark.parametrize("hidden", [False, True])
def test_an_encoder_is_a_model_without_its_head(name: str, width: int, hidden: bool) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(name, 16, 3, 16, hidden=hidden).eval()
    images = torch.rand(2, 3, 16, 16)
    features = encoder.features(images)
    assert features.shape == (2, width)
    assert torch.equal(encoder(images), encoder.head(features))
    assert encoder(images).shape == (2, 16)
    linear = [layer for layer in encoder.head if isinstance(layer, torch.nn.Linear)]
    assert [layer.out_features for layer in linear] == ([width, 16] if hidden else [16])
    torch.manual_seed(0)
    whole = build(name, 16, 3, 16).eval()
    inside = dict(encoder.backbone.named_parameters())
    shared = [(value, inside[key]) for key, value in whole.named_parameters() if key in inside]
    assert len(shared) == len(list(whole.parameters())) - 2  # all but the head
    assert all(torch.equal(*pair) for pair in shared)


def test_every_norm_of_an_encoder_is_split() -> None:
    encoder = build_encoder("resnet18", 16, 3, 16, splits=2)
    norms = [module for module in encoder.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert norms
    assert all(isinstance(norm, SplitBatchNorm) for norm in norms)
    encoder(torch.rand(4, 3, 16, 16))
    with pytest.raises(ModelError, match=r"`task\.bn_splits` must divide a batch of 5 images, got 2"):
        encoder(torch.rand(5, 3, 16, 16))


def test_a_model_without_a_linear_head_cannot_be_an_encoder() -> None:
    with pytest.raises(ModelError, match="no single linear head"):
        build_encoder("squeezenet1_0", 16, 3, 64)
