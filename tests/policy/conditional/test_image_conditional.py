"""Policies for each image: features, files and mistakes."""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from madao import BaseAugmentation, Draw, ImagePolicy, PolicySpec
from madao.errors import PolicyFileError
from madao.policy import FrozenPolicy, OperationParams
from madao.policy.conditional.features import CENTRES, features
from madao.policy.conditional.network import Network
from tests.helpers.policies import inverting_dark, scattered, seeded

IMAGES = torch.rand(60, 3, 8, 8, generator=seeded(0)) * torch.linspace(0.1, 1, 60).reshape(-1, 1, 1, 1)


def learned(**settings: Any) -> ImagePolicy:
    policy = ImagePolicy(**settings)
    policy.standardise(IMAGES)
    return scattered(policy, 1.5)


def test_the_shared_part_is_the_mean_of_the_images_logits() -> None:
    policy = learned()
    law = policy._tables(policy.condition(IMAGES), 60)
    torch.testing.assert_close(law.selection.mean(1), policy.selection_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(law.application.mean(1), policy.application_logits, rtol=0, atol=1e-5)
    seen = policy.condition(IMAGES)
    assert seen is not None
    inputs = (seen - policy.get_buffer("centre")) / policy.get_buffer("scale")
    torch.testing.assert_close(inputs.mean(0), torch.zeros(24), rtol=0, atol=1e-4)
    torch.testing.assert_close(inputs.std(0, correction=0), torch.ones(24), rtol=1e-3, atol=1e-3)
    # Where all images are alike, what differs later is not all that counts.
    policy.standardise(torch.full((4, 3, 8, 8), 0.5))
    assert policy.get_buffer("scale").min() >= 0.002
    assert policy(torch.full((4, 3, 8, 8), 0.6)).isfinite().all()
    assert (policy._layers().hidden(features(torch.full((1, 3, 8, 8), 0.51))).abs() < 1).all()


def test_probabilities_of_nought_and_one_stay_so_whatever_an_image_shows() -> None:
    spec = learned(stages=1, operations=["Invert", "Rotate", "Solarize"]).spec()
    entries = OperationParams(0.0, 0.6), OperationParams(0.5, 1.0, 30.0), OperationParams(0.5, 0.0, 256.0)
    player = FrozenPolicy(dataclasses.replace(spec, stages=(entries,)))
    selection, application, magnitude = player.tables_of(IMAGES)
    assert (selection[..., 0] == 0).all()
    assert selection[0, :, 1].std() > 0
    assert (application[..., 1:] == torch.tensor([1.0, 0.0])).all()
    assert (magnitude == torch.tensor([0.0, 1.0, 0.0])).all()


SMALL = learned(stages=1, units=2, operations=["Invert", "Rotate"]).spec().dumps()
DELETED = object()


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (["version"], 1, "'network'"),
        (["network"], DELETED, "'network'"),
        (["network", "units"], DELETED, "network.*'units'"),
        (["network", "units"], {}, "network.units"),
        (["network", "units"], [], "network.units"),
        (["network", "units", 1, "offset"], DELETED, r"network.units\[1\].*'offset'"),
        (["network", "units", 0, "weights"], 3, r"network.units\[0\].weights"),
        (["network", "units", 1, "weights"], [1, 2], r"network.units\[1\].weights"),
        (["network", "units", 0, "bias"], 1e39, "network.units: bias"),
        (["network", "units", 1, "weights", 0], "x", r"network.units\[1\].weights\[0\]"),
        (["network", "features", "patch 2, 3"], DELETED, "network.features.*'patch 2, 3'"),
        (["network", "features", "patch 2, 3", "scale"], 0.0, "network.features.patch 2, 3.scale"),
        (["network", "features", "mean of red", "centre"], math.nan, "network.features.mean of red.centre"),
        (["network", "stages", 0, "Rotate"], DELETED, r"network.stages\[0\].*'Rotate'"),
        (["network", "stages", 0, "Rotate", "magnitude"], DELETED, r"network.stages\[0\].Rotate.*'magnitude'"),
        (["network", "stages", 0, "Invert", "magnitude"], [1, 2], r"network.stages\[0\].Invert.*'magnitude'"),
        (["network", "stages", 0, "Rotate", "selection"], [1], r"network.stages\[0\].*selection of operation 2"),
        (["network", "stages"], [], "network.stages"),
    ],
)
def test_files_with_an_invalid_network_are_refused(path: list[Any], value: object, place: str) -> None:
    container = document = json.loads(SMALL)
    for name in path[:-1]:
        container = container[name]
    if value is DELETED:
        del container[path[-1]]
    else:
        container[path[-1]] = value
    with pytest.raises(PolicyFileError, match=place):
        PolicySpec.loads(json.dumps(document))


SPEC = learned().spec()
assert isinstance(SPEC.network, Network)
NETWORK: Network = SPEC.network
UNKNOWN = NETWORK.stages[0][0]._replace(magnitude=None), *NETWORK.stages[0][1:]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"bias": (0.0,)}, "network.units: bias"),
        ({"centre": (0.0,)}, "network.features: centre"),
        ({"scale": (math.nan, *NETWORK.scale[1:])}, "network.features: scale"),
        ({"stages": (NETWORK.stages[0], NETWORK.stages[1][:-1])}, r"network.stages\[1\]"),
        ({"stages": (UNKNOWN, NETWORK.stages[1])}, r"network.stages\[0\].ShearX"),
    ],
)
def test_invalid_networks_are_refused(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match=place):
        dataclasses.replace(SPEC, network=dataclasses.replace(NETWORK, **changes))


@pytest.mark.parametrize("unfit", [255 * IMAGES, IMAGES - 1, IMAGES * math.nan, torch.rand(2, 4, 8, 8)])
def test_invalid_images_are_refused_before_features_are_computed(unfit: Tensor) -> None:
    policy = ImagePolicy()
    for ask in (policy.standardise, policy.tables_of, policy.condition, policy.sample, FrozenPolicy(SPEC).tables_of):
        with pytest.raises(ValueError, match="images must"):
            ask(unfit)


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        (lambda policy: policy.log_prob(policy.sample(IMAGES)), r"policy\.condition"),
        (lambda policy: policy.sample(IMAGES, condition=torch.arange(60)), "condition"),
        (lambda policy: policy.standardise(IMAGES[:0]), "standardise"),
        (lambda policy: policy.standardise(IMAGES[:1]), "standardise"),
        (lambda policy: (policy.get_buffer("offset").fill_(math.nan), policy(IMAGES)), "offset"),
        (lambda policy: (policy.get_parameter("selection_outputs").data.fill_(math.nan), policy.spec()), "selection"),
        (lambda _: dataclasses.replace(SPEC, classes=("a", "b"), class_stages=(SPEC.stages,) * 2), "not both"),
    ],
)
def test_mistakes_are_refused(mistake: Callable[[ImagePolicy], object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        mistake(ImagePolicy())


def test_autocast_does_not_change_the_probabilities() -> None:
    policy = learned()
    expected = policy.tables_of(IMAGES)
    with torch.autocast("cpu", torch.bfloat16):
        found = policy.tables_of(IMAGES)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("relaxed", [False, True])
def test_within_standard_augmentation_it_looks_at_what_is_left_of_the_image(relaxed: bool) -> None:
    """Images are light on the left and dark on the right; dark crops are inverted, light ones are left alone."""
    policy = inverting_dark()
    images = torch.linspace(0.93, 0, 24).expand(40, 3, 24, 24).contiguous()
    standard = BaseAugmentation(padding=0, flip=False, cutout=0, policy=policy, size=6)
    draw = standard.sample(images, seeded(2), relaxed)
    assert isinstance(draw.inner, Draw)
    assert draw.inner.differentiable is relaxed
    dark = standard.before(images, draw).mean((1, 2, 3)) < CENTRES[0]
    assert 5 < int(dark.sum()) < 35
    assert torch.equal(draw.inner.applied[0], dark)
