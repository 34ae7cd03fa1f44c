"""Policies with numbers for each class, compared with unconditional policies."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from madao import BaseAugmentation, ClassPolicy, Policy, PolicySpec, load_policy
from madao.errors import PolicyFileError
from madao.hypergrad import Estimator, Identity, Influence, NoBaseline, Problem, Relaxed, hypergradient
from madao.policy import FrozenPolicy
from tests.helpers.policies import fields, scattered, seeded

IMAGES = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 3


def some_classes(classes: int = 3, spread: float = 1.5, **settings: Any) -> ClassPolicy:
    return scattered(ClassPolicy(classes, **settings), spread)


def one_class(policy: ClassPolicy, number: int) -> Policy:
    """The class's logits as a policy for all."""
    alone = Policy(policy.stages, policy.operations)
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            kind = name.removesuffix("_logits")
            parameter.copy_(policy.get_parameter(name) + policy.get_parameter(f"{kind}_deviations")[:, number])
    return alone


@pytest.mark.parametrize("relaxed", [False, True])
def test_without_deviations_it_is_the_policy_for_all_draw_for_draw(relaxed: bool) -> None:
    plain, policy = Policy(), ClassPolicy(3)
    generator = seeded(1)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
            policy.get_parameter(name).copy_(parameter)
    expected = plain.sample(IMAGES, seeded(), relaxed)
    found = policy.sample(IMAGES, seeded(), relaxed, condition=LABELS)
    for field in ("choice", "applied", "sign"):
        assert torch.equal(getattr(found, field), getattr(expected, field))
    # Of as many numbers as there are classes, sigmoid and softmax round the last bit in another way.
    for mine, theirs in zip(fields(found), fields(expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=3e-7, atol=0)
    torch.testing.assert_close(policy.log_prob(found, LABELS), plain.log_prob(expected), rtol=1e-6, atol=0)
    effect = policy.effect_log_prob(found, LABELS), plain.effect_log_prob(expected)
    torch.testing.assert_close(*effect, rtol=1e-6, atol=0)


def test_a_class_draws_by_its_own_logits() -> None:
    """As the policy for all that has them, draw for draw: values, derivatives and log-probabilities."""
    policy = some_classes()
    draw = policy.sample(IMAGES, seeded(), relaxed=True, condition=LABELS)
    for number in range(3):
        mine = number == LABELS
        alone = one_class(policy, number)
        expected = alone.sample(IMAGES, seeded(), relaxed=True)[mine]
        for found, other in zip(fields(draw[mine]), fields(expected), strict=True):
            torch.testing.assert_close(found, other, rtol=1e-6, atol=1e-6)
        found_prob, other_prob = policy.log_prob(draw, LABELS)[mine], alone.log_prob(expected)
        torch.testing.assert_close(found_prob, other_prob, rtol=1e-6, atol=1e-5)
        effect = policy.effect_log_prob(draw, LABELS)[mine], alone.effect_log_prob(expected)
        torch.testing.assert_close(*effect, rtol=1e-6, atol=1e-5)
        for name, kind in (("weight", "selection"), ("gate", "application"), ("magnitude", "magnitude")):
            own = torch.autograd.grad(
                getattr(draw, name)[:, mine].sum(),
                [policy.get_parameter(f"{kind}_deviations"), policy.get_parameter(f"{kind}_logits")],
                retain_graph=True,
            )
            theirs = torch.autograd.grad(getattr(expected, name).sum(), alone.get_parameter(f"{kind}_logits"))[0]
            torch.testing.assert_close(own[0][:, number], theirs, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(own[1], theirs, rtol=1e-4, atol=1e-4)
            others = [other for other in range(3) if other != number]
            assert (own[0][:, others] == 0).all()


@pytest.mark.parametrize("frozen", [False, True])
def test_frequencies_are_those_of_the_class(frozen: bool) -> None:
    policy = some_classes(spread=0.7)
    spec = policy.spec()
    count = 30_000
    labels = torch.arange(3).repeat_interleave(count)
    images = torch.empty(1, 1, 1, 1).expand(len(labels), 1, 4, 4)
    player = FrozenPolicy(spec) if frozen else policy
    draw = player.sample(images, seeded(3), condition=labels)
    selection, application, magnitude = spec.tables(torch.float64)
    for number, stage in itertools.product(range(3), range(2)):
        mine = draw[labels == number]
        seen = torch.bincount(mine.choice[stage], minlength=14)
        assert stats.chisquare(seen, count * selection[stage, number]).pvalue > 1e-3
        assert stats.chisquare(seen, count * selection[stage, (number + 1) % 3]).pvalue < 1e-6
        for index in range(14):
            drawn = mine.choice[stage] == index
            applied, total = int(mine.applied[stage][drawn].sum()), int(drawn.sum())
            assert stats.binomtest(applied, total, float(application[stage, number, index])).pvalue > 1e-5
            expected = magnitude[stage, number, index].float().expand(total)
            torch.testing.assert_close(mine.magnitude[stage][drawn], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("estimator", [Relaxed(), Influence(NoBaseline())])
def test_the_shared_gradient_is_the_sum_of_the_classes(estimator: Estimator) -> None:
    policy = some_classes().double()
    images, theta = IMAGES.double(), torch.randn(192, generator=seeded(), dtype=torch.float64)
    draw = policy.sample(images, seeded(), relaxed=True, condition=LABELS)
    problem = Problem(
        theta,
        tuple(policy.parameters()),
        lambda t, x: (x.flatten(1) @ t).sin(),
        lambda t, _: t.cos().sum(),
        inputs=policy.augment(images, draw),
        log_prob=policy.effect_log_prob(draw, LABELS),
    )
    gradients = hypergradient(problem, Identity(1.0), estimator=estimator).grads
    found = dict(zip(dict(policy.named_parameters()), gradients, strict=True))
    for kind in ("selection", "application", "magnitude"):
        total = found[f"{kind}_deviations"].sum(1)
        assert total.abs().max() > 0
        torch.testing.assert_close(found[f"{kind}_logits"], total)


def test_a_spec_holds_every_class_and_gives_them_back(tmp_path: Path) -> None:
    policy = some_classes(fill=0.25)
    spec = policy.spec()
    path = tmp_path / "policy.json"
    spec.save(path)
    assert PolicySpec.load(path) == spec
    assert '"version": 2' in path.read_text()
    assert '"version": 1' in spec.of_class("1").dumps()
    for number, name in enumerate(spec.classes):
        assert spec.of_class(name) == dataclasses.replace(one_class(policy, number).spec(), fill=0.25)
    assert not spec.of_class(None).classes
    assert spec.of_class(None).stages == spec.stages
    again = ClassPolicy.from_spec(spec, shrinkage=0.5)
    assert again.shrinkage == 0.5
    for mine, theirs in zip(again.spec().tables(), spec.tables(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again.magnitude_logits, policy.magnitude_logits, rtol=1e-3, atol=1e-3)
    loaded = load_policy(path)
    assert loaded.classes == ("0", "1", "2")
    assert loaded(IMAGES, LABELS).shape == IMAGES.shape


def test_invalid_classes_are_refused(tmp_path: Path) -> None:
    text = ClassPolicy(2, 1, operations=["Invert", "Rotate"]).spec().dumps()
    for old, new, message in (
        ('"version": 2', '"version": 1', "the file: unknown field 'classes'"),
        ('"classes"', '"klasses"', "the field 'classes' is missing"),
        ('    "1": [', '    "0": [', "0: is there twice in one object"),
        ('"version": 2', '"version": 5', "reads up to 4"),
        ('"version": 2', '"version": 4', "the field 'variation' is missing"),
    ):
        assert old in text
        with pytest.raises(PolicyFileError, match=message):
            PolicySpec.loads(text.replace(old, new))
    with pytest.raises(PolicyFileError, match=r"classes.1: expected a list of objects, got null"):
        PolicySpec.loads(text[: text.index('    "1": [')] + '    "1": null\n  }\n}\n')
    shorter = text[: text.index('    "1": [')] + '    "1": []\n  }\n}\n'
    with pytest.raises(PolicyFileError, match=r"classes.1: 0 stages where the shared part has 1; give the same number"):
        PolicySpec.loads(shorter)
    head, _, tail = text.rpartition('"selection": 0.5')
    with pytest.raises(PolicyFileError, match=r"classes.1\[0\]: selection probabilities must sum to 1"):
        PolicySpec.loads(f'{head}"selection": 0.1{tail}')
    spec = ClassPolicy(2).spec()
    with pytest.raises(ValueError, match="classes: 1 names for 2 classes; give one each"):
        dataclasses.replace(spec, classes=("a",))
    with pytest.raises(ValueError, match="a is there twice; name each class once"):
        dataclasses.replace(spec, classes=("a", "a"))
    with pytest.raises(ValueError, match="unknown class 'owl'; this policy has 0, 1"):
        spec.of_class("owl")
    with pytest.raises(ValueError, match="unknown class 'owl'; this policy has none"):
        Policy().spec().of_class("owl")


def test_labels_that_do_not_fit_are_refused() -> None:
    policy = ClassPolicy(["cat", "dog", "owl"])
    with pytest.raises(ValueError, match=r"needs the images' labels; give policy\(images, labels\)"):
        policy(IMAGES)
    for labels in (LABELS[:-1], LABELS.float(), torch.rand(60, 3), LABELS[:, None]):
        with pytest.raises(ValueError, match="labels must be whole numbers, one for each of 60 images"):
            policy(IMAGES, labels)
    for labels in (LABELS + 1, LABELS - 1):
        with pytest.raises(ValueError, match="labels must lie in 0 to 2, got"):
            policy(IMAGES, labels)
    for classes in (1, ["cat"], ["cat", "cat"], 0):
        with pytest.raises(ValueError, match="classes must be two or more, each with its own name"):
            ClassPolicy(classes)
    for shrinkage in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="shrinkage must be at least 0"):
            ClassPolicy(2, shrinkage=shrinkage)
    assert len(policy(IMAGES[:0], LABELS[:0])) == 0


def test_to_a_policy_for_all_labels_make_no_difference() -> None:
    for policy in (Policy(), load_policy("uniform"), load_policy("trivialaugment"), load_policy("autoaugment-svhn")):
        found = [policy.sample(IMAGES, seeded(), condition=labels) for labels in (None, LABELS, torch.rand(60, 3))]
        assert all(torch.equal(draw.choice, found[0].choice) for draw in found)
        assert torch.equal(policy.manual_seed(3)(IMAGES, LABELS), policy.manual_seed(3)(IMAGES))


def test_within_standard_augmentation_and_back_from_a_state() -> None:
    policy = some_classes(seed=3)
    standard = BaseAugmentation(padding=1, cutout=0, policy=policy, seed=4)
    draw = standard.sample(IMAGES, seeded(), relaxed=True, labels=LABELS)
    assert draw.inner is not None
    assert draw.inner.differentiable
    other = BaseAugmentation(padding=1, cutout=0, policy=some_classes(spread=0.1), seed=0)
    other.load_state_dict(standard.state_dict())
    assert torch.equal(other(IMAGES, LABELS), standard(IMAGES, LABELS))
    assert not torch.equal(other(IMAGES, LABELS), standard(IMAGES, LABELS.flip(0)))
    with pytest.raises(RuntimeError, match="size mismatch"):
        ClassPolicy(4).load_state_dict(policy.state_dict())
