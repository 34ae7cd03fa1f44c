"""Policies for each class and each image, against unconditional policies with the same logits."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from madao import ClassPolicy, ImagePolicy, Policy, PolicySpec, load_policy
from madao.hypergrad import Estimator, Identity, Influence, NoBaseline, Problem, Relaxed, hypergradient
from madao.policy import FrozenPolicy
from tests.helpers.policies import fields, logits_of, scattered, seeded

KINDS = ("selection", "application", "magnitude")
IMAGES = torch.rand(60, 3, 8, 8, generator=seeded(0)) * torch.linspace(0.1, 1, 60).reshape(-1, 1, 1, 1)
LABELS = torch.arange(60) % 3
SPECS = {"none": Policy().spec(), "class": ClassPolicy(2).spec(), "image": ImagePolicy().spec()}
every_kind = pytest.mark.parametrize("on", ["class", "image"])


def fresh(on: str, **settings: Any) -> ClassPolicy | ImagePolicy:
    if on == "class":
        return ClassPolicy(3, **settings)
    policy = ImagePolicy(**settings)
    policy.standardise(IMAGES)
    return policy


def uneven(on: str, spread: float = 1.5, **settings: Any) -> ClassPolicy | ImagePolicy:
    return scattered(fresh(on, **settings), spread)


def condition_of(policy: Policy, count: int = 60) -> Tensor:
    found = policy.condition(IMAGES[:count], LABELS[:count])
    assert found is not None
    return found


def alone(policy: Policy, condition: Tensor, number: int) -> Policy:
    """The logits of one image as an unconditional policy."""
    single = Policy(policy.stages, policy.operations).to(policy.selection_logits.dtype)
    with torch.no_grad():
        for kind in KINDS:
            single.get_parameter(f"{kind}_logits").copy_(logits_of(policy, kind, condition)[:, number])
    return single


@pytest.mark.parametrize("relaxed", [False, True])
@every_kind
def test_before_it_learns_it_is_the_unconditional_policy(on: str, relaxed: bool) -> None:
    plain, policy = scattered(Policy()), fresh(on)
    policy.load_state_dict(plain.state_dict(), strict=False)
    condition = condition_of(policy)
    expected = plain.sample(IMAGES, seeded(), relaxed)
    found = policy.sample(IMAGES, seeded(), relaxed, condition=condition)
    # Of as many numbers as there are classes, sigmoid and softmax round the last bit in another way.
    torch.testing.assert_close(fields(found), fields(expected), rtol=3e-7, atol=0)
    torch.testing.assert_close(policy.log_prob(found, condition), plain.log_prob(expected), rtol=1e-6, atol=0)
    effect = policy.effect_log_prob(found, condition), plain.effect_log_prob(expected)
    torch.testing.assert_close(*effect, rtol=1e-6, atol=0)


@every_kind
def test_every_image_is_drawn_by_its_own_logits(on: str) -> None:
    policy = uneven(on).double()
    condition = condition_of(policy)
    draw = policy.sample(IMAGES, seeded(), relaxed=True, condition=condition)
    law = policy.tables_of(IMAGES, LABELS)
    for number in range(0, 60, 7):
        single = alone(policy, condition, number)
        own = [table[:, number] for table in law]
        torch.testing.assert_close(own, [single.selection, single.application, single.magnitude])
        same = single.sample(IMAGES, seeded(), relaxed=True)[number]
        torch.testing.assert_close(fields(draw[number]), fields(same))
        for ask in ("log_prob", "effect_log_prob"):
            found, expected = getattr(policy, ask)(draw, condition)[number], getattr(single, ask)(draw[number])[0]
            torch.testing.assert_close(found, expected)
    assert law[0].std(1).max() > 0.05


@pytest.mark.parametrize("frozen", [False, True])
@every_kind
def test_frequencies_are_those_of_the_image(on: str, frozen: bool) -> None:
    policy, count, pair = uneven(on, 0.8), 30_000, [3, 55]
    selection, application, magnitude = (table.detach()[:, pair].double() for table in policy.tables_of(IMAGES, LABELS))
    player = FrozenPolicy(policy.spec()) if frozen else policy
    labels = LABELS[pair].repeat_interleave(count) if on == "class" else None
    draw = player.sample(IMAGES[pair].repeat_interleave(count, 0), seeded(3), condition=labels)
    for number, stage in itertools.product(range(2), range(2)):
        mine = draw[slice(number * count, (number + 1) * count)]
        seen = torch.bincount(mine.choice[stage], minlength=14)
        expected, other = (count * shares / shares.sum() for shares in selection[stage, [number, 1 - number]])
        assert stats.chisquare(seen, expected).pvalue > 1e-3
        assert stats.chisquare(seen, other).pvalue < 1e-6
        for index in range(14):
            drawn = mine.choice[stage] == index
            applied, total = int(mine.applied[stage][drawn].sum()), int(drawn.sum())
            if total:
                assert stats.binomtest(applied, total, float(application[stage, number, index])).pvalue > 1e-5
                strength = magnitude[stage, number, index].float().expand(total)
                torch.testing.assert_close(mine.magnitude[stage][drawn], strength, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("estimator", [Relaxed(), Influence(NoBaseline())])
@every_kind
def test_gradients_are_those_of_each_images_logits(on: str, estimator: Estimator) -> None:
    """Images one by one, each through an unconditional policy, and back through the definition of its logits."""
    images, theta = IMAGES[:5].double(), torch.randn(192, generator=seeded(), dtype=torch.float64)
    policy = uneven(on).double()
    condition = condition_of(policy, 5)

    def gradients(policy: Policy, inputs: Tensor, log_prob: Tensor) -> dict[str, Tensor]:
        problem = Problem(
            theta,
            tuple(policy.parameters()),
            lambda t, x: (x.flatten(1) @ t).sin(),
            lambda t, _: t.cos().sum(),
            inputs=inputs,
            log_prob=log_prob,
        )
        found = hypergradient(problem, Identity(1.0), estimator=estimator).grads
        return dict(zip(dict(policy.named_parameters()), found, strict=True))

    draw = policy.sample(images, seeded(), relaxed=True, condition=condition)
    found = gradients(policy, policy.augment(images, draw), policy.effect_log_prob(draw, condition))
    logits = {kind: logits_of(policy, kind, condition) for kind in KINDS}
    cotangents = {kind: torch.zeros_like(each) for kind, each in logits.items()}
    for number in range(5):
        single = alone(policy, condition, number)
        same = single.sample(images, seeded(), relaxed=True)[number]
        part = gradients(single, single.augment(images[number : number + 1], same), single.effect_log_prob(same))
        for kind in KINDS:
            cotangents[kind][:, number] = part[f"{kind}_logits"] / 5
    expected = torch.autograd.grad([*logits.values()], [*policy.parameters()], [*cotangents.values()])
    torch.testing.assert_close(list(found.values()), list(expected))
    assert all(gradient.any() for gradient in found.values())


@every_kind
def test_a_spec_holds_everything_and_gives_it_back(on: str, tmp_path: Path) -> None:
    policy = uneven(on, fill=0.25)
    spec, path = policy.spec(), tmp_path / "policy.json"
    spec.save(path)
    text = path.read_text()
    assert PolicySpec.load(path) == spec
    assert hash(PolicySpec.load(path)) == hash(spec)
    assert f'"version": {2 if on == "class" else 3}' in text
    assert max(len(line) for line in text.splitlines()) < 700
    assert '"version": 1' in spec.of_class(None).dumps()
    assert spec.of_class(None).stages == spec.stages
    again, loaded = type(policy).from_spec(spec, shrinkage=0.5), load_policy(path)
    assert again.shrinkage == 0.5
    assert "shrinkage=0.5" in repr(again)
    assert again.fill == 0.25
    assert isinstance(loaded, FrozenPolicy)
    assert loaded.classes == (("0", "1", "2") if on == "class" else ())
    assert loaded.uses_image == again.uses_image == (on == "image")
    for player in (again, loaded):
        found, expected = player.tables_of(IMAGES, LABELS), policy.tables_of(IMAGES, LABELS)
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)
    assert loaded(IMAGES, LABELS).shape == IMAGES.shape


@pytest.mark.parametrize("kind", [Policy, ClassPolicy, ImagePolicy])
@pytest.mark.parametrize("on", SPECS)
def test_a_policy_is_built_from_specs_of_its_kind(kind: type[Policy], on: str) -> None:
    spec = SPECS[on]
    assert spec.conditional_on == on
    if kind.conditional_on == on:
        assert kind.from_spec(spec).spec().stages == spec.stages
        return
    with pytest.raises(ValueError, match=f"conditional_on='{kind.conditional_on}', this spec '{on}'"):
        kind.from_spec(spec)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("shrinkage", [0.3, 0.0])
@every_kind
def test_the_prior_adds_the_gradient_of_its_quadratic_at_every_scale_of_the_loss(
    on: str, shrinkage: float, scale: float
) -> None:
    policy = uneven(on, shrinkage=shrinkage)
    parameters = dict(policy.named_parameters())
    gradients = {name: scale * torch.randn(p.shape, generator=seeded(len(name))) for name, p in parameters.items()}
    found = policy.with_prior(gradients)
    assert list(found) == list(gradients)
    for name, parameter in parameters.items():
        if name.endswith("_logits"):  # the shared part has none
            assert torch.equal(found[name], gradients[name])
            continue
        typical = gradients[name].square().mean().sqrt()
        (pull,) = torch.autograd.grad(0.5 * shrinkage * typical * parameter.square().sum(), parameter)
        torch.testing.assert_close(found[name], gradients[name] + pull, rtol=1e-5, atol=1e-6 * scale)
        assert (pull.abs().max() > 0.1 * scale) == (shrinkage > 0)


@pytest.mark.parametrize(
    ("policy", "larger"), [(ClassPolicy(3), ClassPolicy(4)), (ImagePolicy(), ImagePolicy(units=32))]
)
def test_a_state_of_another_size_is_refused(policy: Policy, larger: Policy) -> None:
    with pytest.raises(RuntimeError, match="size mismatch"):
        larger.load_state_dict(policy.state_dict())
