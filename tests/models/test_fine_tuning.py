import pytest
import torch
from torch import nn

from madao.models import build
from madao.models.fine_tuning import freeze_norms, parameter_groups, pretrained_statistics

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(("name", "head"), [("resnet18", "fc"), ("timm/test_vit", "head"), ("small-cnn", None)])
def test_the_head_has_its_own_group(name: str, head: str | None) -> None:
    model = build(name, classes=5, image_size=160 if name.startswith("timm") else 32)
    (everything,) = parameter_groups(model, 1)
    assert [*map(id, everything["params"])] == [*map(id, model.parameters())]
    body, own = parameter_groups(model, 10)
    assert own["lr_scale"] == 10
    assert {*map(id, body["params"])} | {*map(id, own["params"])} == {*map(id, model.parameters())}
    assert sorted(parameter.shape[0] for parameter in own["params"]) == [5, 5]
    if head is not None:
        assert {*map(id, own["params"])} == {*map(id, model.get_submodule(head).parameters())}


def test_frozen_parameters_are_in_no_group() -> None:
    model = nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(3, 2))
    assert [len(group["params"]) for group in parameter_groups(model, 1)] == [2]
    assert [len(group["params"]) for group in parameter_groups(model, 2)] == [0, 2]


def test_frozen_norms_keep_statistics_and_weights() -> None:
    model = build("resnet18", classes=3)
    freeze_norms(model.train())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(parameter_groups(model, 1)[0]["params"], lr=0.1, weight_decay=0.1)
    model(torch.rand(4, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    norms = tuple(name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert norms
    assert not [name for name in changed if name.startswith(norms)]
    assert {"conv1.weight", "fc.weight"} <= changed
    assert model.training


@pytest.mark.parametrize(
    ("name", "channels", "expected"),
    [
        ("resnet18", 3, IMAGENET),
        ("timm/test_vit", 3, ((0.5,) * 3, (0.5,) * 3)),
        ("convnext_atto", 3, IMAGENET),
        ("resnet18", 1, ((sum(IMAGENET[0]) / 3,), (sum(IMAGENET[1]) / 3,))),
        ("wrn-28-2", 3, None),
        ("no-such-model", 3, None),
    ],
)
def test_the_statistics_of_published_weights(name: str, channels: int, expected: object) -> None:
    assert pretrained_statistics(name, channels) == expected
