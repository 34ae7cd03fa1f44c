"""Policies with numbers for each image, compared with unconditional policies."""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from madao import BaseAugmentation, ClassPolicy, Draw, ImagePolicy, Policy, PolicySpec, load_policy
from madao.errors import PolicyFileError
from madao.hypergrad import Estimator, Identity, Influence, NoBaseline, Problem, Relaxed, hypergradient
from madao.policy import FrozenPolicy
from madao.policy.conditional.features import CENTRES, NAMES, features
from madao.policy.conditional.network import Network
from tests.helpers.policies import fields, inverting_dark, scattered, seeded

IMAGES = torch.rand(60, 3, 8, 8, generator=seeded(0)) * torch.linspace(0.1, 1, 60).reshape(-1, 1, 1, 1)
KINDS = ("selection", "application", "magnitude")


def looking(spread: float = 1.5, images: Tensor = IMAGES, **settings: Any) -> ImagePolicy:
    policy = ImagePolicy(**settings)
    policy.standardise(images)
    return scattered(policy, spread)


def one_image(policy: ImagePolicy, image: Tensor) -> Policy:
    """The image's logits, worked out unit by unit, as a policy for all."""
    seen = features(image[None])[0]
    buffers = {name: policy.get_buffer(name).double() for name in ("centre", "scale", "weights", "bias", "offset")}
    inputs = (seen - buffers["centre"]) / buffers["scale"]
    units = len(buffers["bias"])
    hidden = [
        math.tanh(sum(w * x for w, x in zip(row, inputs, strict=True)) / math.sqrt(len(NAMES)) + b) - c
        for row, b, c in zip(buffers["weights"], buffers["bias"], buffers["offset"], strict=True)
    ]
    alone = Policy(policy.stages, policy.operations)
    with torch.no_grad():
        for kind in KINDS:
            outputs = policy.get_parameter(f"{kind}_outputs").double()
            added = sum(hidden[unit] * outputs[:, unit] for unit in range(units))
            assert isinstance(added, Tensor)
            alone.get_parameter(f"{kind}_logits").copy_(
                policy.get_parameter(f"{kind}_logits") + added / math.sqrt(units)
            )
    return alone


@pytest.mark.parametrize("relaxed", [False, True])
def test_before_it_learns_it_is_the_policy_for_all(relaxed: bool) -> None:
    plain, policy = Policy(), ImagePolicy()
    policy.standardise(IMAGES)
    found, expected = policy.sample(IMAGES, seeded(), relaxed), plain.sample(IMAGES, seeded(), relaxed)
    for mine, theirs in zip(fields(found), fields(expected), strict=True):
        assert torch.equal(mine, theirs)
    effect = policy.effect_log_prob(found, policy.condition(IMAGES)), plain.effect_log_prob(expected)
    torch.testing.assert_close(*effect, rtol=1e-6, atol=0)


def test_every_image_is_drawn_by_its_own_logits() -> None:
    policy = looking()
    condition = policy.condition(IMAGES)
    draw = policy.sample(IMAGES, seeded(), relaxed=True)
    noise = seeded()  # of which each image takes its place in the batch's
    law = policy.tables_of(IMAGES)
    for number in range(0, 60, 7):
        alone = one_image(policy, IMAGES[number])
        for mine, theirs in zip(law, (alone.selection, alone.application, alone.magnitude), strict=True):
            torch.testing.assert_close(mine[:, number], theirs, rtol=1e-4, atol=1e-5)
        same = alone.sample(IMAGES, noise.manual_seed(7), relaxed=True)[number]
        for mine, theirs in zip(fields(draw[number]), fields(same), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        for ask in ("log_prob", "effect_log_prob"):
            found, expected = getattr(policy, ask)(draw, condition)[number], getattr(alone, ask)(draw[number])[0]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert law[0].std(1).max() > 0.05


@pytest.mark.parametrize("frozen", [False, True])
def test_frequencies_are_those_of_the_image(frozen: bool) -> None:
    policy = looking(spread=0.9)
    player = FrozenPolicy(policy.spec()) if frozen else policy
    count, pair = 30_000, IMAGES[[3, 55]]
    selection, application, magnitude = (table.detach().double() for table in policy.tables_of(pair))
    selection /= selection.sum(-1, keepdim=True)
    draw = player.sample(pair.repeat_interleave(count, 0), seeded(3))
    for number, stage in itertools.product(range(2), range(2)):
        mine = draw[slice(number * count, (number + 1) * count)]
        seen = torch.bincount(mine.choice[stage], minlength=14)
        assert stats.chisquare(seen, count * selection[stage, number]).pvalue > 1e-3
        assert stats.chisquare(seen, count * selection[stage, 1 - number]).pvalue < 1e-6
        for index in range(14):
            drawn = mine.choice[stage] == index
            applied, total = int(mine.applied[stage][drawn].sum()), int(drawn.sum())
            if total:
                assert stats.binomtest(applied, total, float(application[stage, number, index])).pvalue > 1e-5
                expected = magnitude[stage, number, index].float().expand(total)
                torch.testing.assert_close(mine.magnitude[stage][drawn], expected, rtol=1e-4, atol=1e-4)


def test_the_shared_part_is_the_mean_of_the_images_logits() -> None:
    policy = looking()
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


@pytest.mark.parametrize("estimator", [Relaxed(), Influence(NoBaseline())])
def test_the_gradient_of_outputs_is_that_of_each_images_logits_by_its_hidden_units(estimator: Estimator) -> None:
    """∂g/∂V = Σ_b h_b ∂g/∂logits_b / √H: images one by one, each through a policy for all of its own."""
    images, theta = IMAGES[:5].double(), torch.randn(192, generator=seeded(), dtype=torch.float64)
    policy = looking(images=IMAGES).double()
    draw = policy.sample(images, seeded(), relaxed=True)

    def gradients(policy: Policy, inputs: Tensor, log_prob: Tensor) -> dict[str, Tensor]:
        problem = Problem(
            theta,
            tuple(policy.parameters()),
            lambda t, x: (x.flatten(1) @ t).sin(),
            lambda t, _: t.cos().sum(),
            inputs=inputs,
            log_prob=log_prob,
        )
        return dict(
            zip(
                dict(policy.named_parameters()),
                hypergradient(problem, Identity(1.0), estimator=estimator).grads,
                strict=True,
            )
        )

    condition = policy.condition(images)
    assert condition is not None
    found = gradients(policy, policy.augment(images, draw), policy.effect_log_prob(draw, condition))
    expected = {name: torch.zeros_like(parameter) for name, parameter in policy.named_parameters()}
    for number in range(5):
        alone = one_image(policy, images[number]).double()
        same = alone.sample(images, seeded(), relaxed=True)[number]
        part = gradients(alone, alone.augment(images[number : number + 1], same), alone.effect_log_prob(same))
        hidden = policy._layers().hidden(condition[number : number + 1])[0].detach()
        for kind in KINDS:
            expected[f"{kind}_logits"] += part[f"{kind}_logits"] / 5
            outer = hidden[None, :, None] * part[f"{kind}_logits"][:, None] / math.sqrt(len(hidden))
            expected[f"{kind}_outputs"] += outer / 5
    for name, gradient in found.items():
        assert gradient.abs().max() > 0, name
        # A policy for all has logits rounded to float32 on the way.
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-4 * gradient.abs().max().item())


def test_a_spec_holds_the_network_and_gives_it_back(tmp_path: Path) -> None:
    policy = looking(fill=0.25)
    spec, path = policy.spec(), tmp_path / "policy.json"
    spec.save(path)
    text = path.read_text()
    assert PolicySpec.load(path) == spec
    assert hash(PolicySpec.load(path)) == hash(spec)
    assert '"version": 3' in text
    assert max(len(line) for line in text.splitlines()) < 700
    assert '"version": 1' in spec.of_class(None).dumps()
    assert spec.of_class(None).stages == spec.stages
    again = ImagePolicy.from_spec(spec, shrinkage=0.5)
    assert again.shrinkage == 0.5
    for player in (again, load_policy(path)):
        assert player.uses_image
        assert isinstance(player, Policy | FrozenPolicy)
        for mine, theirs in zip(player.tables_of(IMAGES), policy.tables_of(IMAGES), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)
    assert load_policy(path)(IMAGES).shape == IMAGES.shape


def test_probabilities_of_nought_and_one_stay_so_whatever_an_image_shows() -> None:
    spec = looking(stages=1, operations=["Invert", "Rotate", "Solarize"]).spec()
    entries = [dataclasses.replace(entry) for entry in spec.stages[0]]
    entries[0] = dataclasses.replace(entries[0], selection=0.0)
    entries[1] = dataclasses.replace(entries[1], selection=0.5, application=1.0, magnitude=30.0)
    entries[2] = dataclasses.replace(entries[2], selection=0.5, application=0.0, magnitude=256.0)
    player = FrozenPolicy(dataclasses.replace(spec, stages=(tuple(entries),)))
    selection, application, magnitude = player.tables_of(IMAGES)
    assert (selection[..., 0] == 0).all()
    assert selection[0, :, 1].std() > 0
    assert (application[..., 1] == 1).all()
    assert (application[..., 2] == 0).all()
    assert (magnitude[..., 0] == 0).all()
    assert (magnitude[..., 1] == 1).all()
    assert (magnitude[..., 2] == 0).all()


def test_files_with_an_invalid_network_are_refused() -> None:
    data = json.loads(looking(stages=1, units=2, operations=["Invert", "Rotate"]).spec().dumps())

    def refused(message: str, *path: str | int, value: object = None) -> None:
        changed = json.loads(json.dumps(data))
        place = changed
        for name in path[:-1]:
            place = place[name]
        if value is None:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        with pytest.raises(PolicyFileError, match=message):
            PolicySpec.loads(json.dumps(changed))

    refused("unknown field 'network'", "version", value=1)
    refused("the field 'network' is missing", "network")
    refused(r"network: the field 'units' is missing", "network", "units")
    refused(r"network.units: expected a list of objects", "network", "units", value={})
    refused(r"network.units: there is none", "network", "units", value=[])
    refused(r"network.units\[1\]: the field 'offset' is missing", "network", "units", 1, "offset")
    refused(r"network.units\[0\].weights: expected a list of numbers", "network", "units", 0, "weights", value=3)
    refused(r"units\[1\].weights: 2 numbers for 24 features", "network", "units", 1, "weights", value=[1, 2])
    refused(r"units: bias: must be numbers of up to 1e\+06, got 1e\+39", "network", "units", 0, "bias", value=1e39)
    refused(r"weights\[0\]: expected a number, got the text 'x'", "network", "units", 1, "weights", 0, value="x")
    seen = "network", "features"
    refused(r"network.features: the field 'patch 2, 3' is missing", *seen, "patch 2, 3")
    refused(r"features.patch 2, 3.scale: must be at least 1e-06, got 0", *seen, "patch 2, 3", "scale", value=0.0)
    refused(r"features.mean of red.centre: expected a finite number", *seen, "mean of red", "centre", value=math.nan)
    stage = "network", "stages", 0
    refused(r"network.stages\[0\]: the field 'Rotate' is missing", *stage, "Rotate")
    refused(r"network.stages\[0\].Rotate: the field 'magnitude' is missing", *stage, "Rotate", "magnitude")
    refused(r"network.stages\[0\].Invert: unknown field", *stage, "Invert", "magnitude", value=[1, 2])
    refused(r"selection of operation 2: 1 numbers for 2 hidden units", *stage, "Rotate", "selection", value=[1])
    refused(r"network.stages: 0 entries where there are 1", "network", "stages", value=[])


def test_invalid_networks_are_refused() -> None:
    spec = looking().spec()
    network = spec.network
    assert isinstance(network, Network)
    with pytest.raises(ValueError, match=r"network.units: bias: 1 numbers for 16 hidden units"):
        dataclasses.replace(network, bias=(0.0,))
    with pytest.raises(ValueError, match=r"network.features: centre: 1 numbers for 24 features"):
        dataclasses.replace(network, centre=(0.0,))
    with pytest.raises(ValueError, match=r"network.features: scale: must be numbers of up to 1e\+06, got nan"):
        dataclasses.replace(network, scale=(math.nan, *network.scale[1:]))
    policy = looking()
    with torch.no_grad():
        policy.get_parameter("selection_outputs")[1, 3, 2] = math.nan
    with pytest.raises(ValueError, match=r"network.stages\[1\]: selection of operation 3: must be numbers of up to"):
        policy.spec()
    with pytest.raises(ValueError, match=r"network.stages\[1\]: 13 entries where there are 14"):
        dataclasses.replace(
            spec, network=dataclasses.replace(network, stages=(network.stages[0], network.stages[1][:-1]))
        )
    outputs = network.stages[0][0]._replace(magnitude=None)
    changed = (outputs, *network.stages[0][1:])
    with pytest.raises(ValueError, match=r"network.stages\[0\].ShearX: the magnitude is missing"):
        dataclasses.replace(spec, network=dataclasses.replace(network, stages=(changed, network.stages[1])))
    with pytest.raises(ValueError, match="a policy has classes or a network, not both"):
        dataclasses.replace(spec, classes=("a", "b"), class_stages=(spec.stages, spec.stages))


def test_conditions_that_do_not_fit_are_refused() -> None:
    policy = ImagePolicy()
    with pytest.raises(ValueError, match=r"a draw does not hold them; give policy.condition\(images\) beside it"):
        policy.log_prob(policy.sample(IMAGES))
    with pytest.raises(ValueError, match=r"24 numbers for each of 60 images, got shape \[60\]"):
        policy.sample(IMAGES, condition=torch.arange(60))
    assert len(policy(IMAGES[:0])) == 0
    assert "units=16" in repr(policy)


@pytest.mark.parametrize("settings", [{"units": 0}, {"units": -1}, {"units": 2.0}, {"units": True}, {"shrinkage": -1}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must be"):
        ImagePolicy(**settings)


@pytest.mark.parametrize("unfit", [255 * IMAGES, IMAGES - 1, IMAGES * math.nan, torch.rand(2, 4, 8, 8)])
def test_invalid_images_are_refused_before_features_are_computed(unfit: Tensor) -> None:
    policy = ImagePolicy()
    tables = policy.tables_of, FrozenPolicy(policy.spec()).tables_of
    for ask in (policy.standardise, policy.condition, policy.sample, *tables):
        with pytest.raises(ValueError, match="images must"):
            ask(unfit)


def test_one_image_is_too_few_to_standardise_and_a_broken_buffer_is_named() -> None:
    policy = ImagePolicy()
    for few in (IMAGES[:0], IMAGES[:1]):
        with pytest.raises(ValueError, match="standardise needs two images or more"):
            policy.standardise(few)
    policy.get_buffer("offset")[0] = math.nan
    with pytest.raises(ValueError, match="offset"):
        policy(IMAGES)


SPECS = {"none": Policy().spec(), "class": ClassPolicy(2).spec(), "image": ImagePolicy().spec()}


@pytest.mark.parametrize("kind", [Policy, ClassPolicy, ImagePolicy])
@pytest.mark.parametrize("on", SPECS)
def test_a_policy_is_built_from_specs_of_its_kind(kind: type[Policy], on: str) -> None:
    spec = SPECS[on]
    assert spec.conditional_on == on
    if kind.conditional_on == on:
        assert kind.from_spec(spec).spec().stages == spec.stages
        return
    with pytest.raises(ValueError, match=f"conditional_on='{kind.conditional_on}', this spec '{on}'; call from_spec"):
        kind.from_spec(spec)


def test_autocast_does_not_change_the_probabilities() -> None:
    policy = looking()
    expected = policy.tables_of(IMAGES)
    with torch.autocast("cpu", torch.bfloat16):
        found = policy.tables_of(IMAGES)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


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


def test_back_from_a_state() -> None:
    policy, other = looking(seed=3), ImagePolicy(seed=5)
    assert not torch.equal(policy.get_buffer("weights"), other.get_buffer("weights"))
    other.load_state_dict(policy.state_dict())
    assert torch.equal(policy(IMAGES), other(IMAGES))
    with pytest.raises(RuntimeError, match="size mismatch"):
        ImagePolicy(units=8).load_state_dict(policy.state_dict())
