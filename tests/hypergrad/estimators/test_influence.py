"""Per-example influence and the score-function gradient, against exact enumeration."""

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.hypergrad import (
    BatchMean,
    ClassMean,
    DoubleBackward,
    FiniteDifference,
    ForwardOverReverse,
    FunctionalModel,
    Identity,
    Influence,
    LeaveOneOut,
    NoBaseline,
    Problem,
    Relaxed,
    SameExample,
    SameLoss,
    Term,
    Traced,
    Unaugmented,
    hypergradient,
)
from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.estimators.baselines import Baseline, Batch
from madao.policy import Draw, Policy

# Six different examples, each eight times in the batch.
DIFFERENT, COPIES = 6, 8
COUNT = DIFFERENT * COPIES
GENERATOR = torch.Generator().manual_seed(0)
BASE = torch.rand(DIFFERENT, 1, 6, 6, generator=GENERATOR, dtype=torch.float64)
BASE_LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
IMAGES, LABELS = BASE.repeat(COPIES, 1, 1, 1), BASE_LABELS.repeat(COPIES)
# Validation of the same kind, so that training examples help: influences are positive on the whole, as in training.
VALIDATION = (BASE + 0.1 * torch.randn(BASE.shape, generator=GENERATOR, dtype=torch.float64)).clamp(0, 1)
VALIDATION_LABELS = BASE_LABELS


def small_model() -> FunctionalModel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)).double()
    return FunctionalModel(model)


MODEL = small_model()


def losses(params: dict[str, Tensor], images: Tensor, labels: Tensor = LABELS) -> Tensor:
    return F.cross_entropy(MODEL(params, images), labels, reduction="none")


def outer(params: dict[str, Tensor], _: Tensor) -> Tensor:
    return F.cross_entropy(MODEL(params, VALIDATION), VALIDATION_LABELS)


def three_operations() -> Policy:
    policy = Policy(stages=2, operations=["Brightness", "Invert", "ShearX"]).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=GENERATOR, dtype=torch.float64))
    return policy


POLICY = three_operations()


def problem(draw: Draw, images: Tensor = IMAGES, labels: Tensor = LABELS) -> Problem:
    return Problem(
        params=MODEL.params,
        hyper=tuple(POLICY.parameters()),
        inputs=POLICY.augment(images, draw),
        inner=lambda p, x: losses(p, x, labels),
        outer=outer,
        log_prob=POLICY.effect_log_prob(draw),
        classes=labels,
        plain=images,
    )


def influence_of(images: Tensor, labels: Tensor, q: dict[str, Tensor]) -> Tensor:
    """⟨q, ∇θ ℓ_b⟩ by explicit gradients, one example at a time; differentiable in the images."""
    values = []
    for b in range(len(images)):
        gradient = torch.func.grad(lambda p, b=b: losses(p, images[b : b + 1], labels[b : b + 1]).sum())(MODEL.params)
        values.append(torch.stack([(gradient[name] * q[name]).sum() for name in q]).sum())
    return torch.stack(values)


def outer_gradient() -> dict[str, Tensor]:
    return {name: g.detach() for name, g in torch.func.grad(lambda p: outer(p, IMAGES))(MODEL.params).items()}


class Recording:
    """A baseline that records its batch."""

    seen: Batch

    def __call__(self, batch: Batch) -> Tensor:
        self.seen = batch
        return torch.zeros_like(batch.influence)


def test_values_equal_explicit_per_example_gradients() -> None:
    draw = POLICY.sample(IMAGES, relaxed=True).pathwise()
    recording = Recording()
    hypergradient(problem(draw), Identity(1.0), estimator=Influence(recording), check=False)
    with torch.no_grad():
        augmented = POLICY.augment(IMAGES, draw)
    q = outer_gradient()
    torch.testing.assert_close(recording.seen.influence, influence_of(augmented, LABELS, q))
    assert recording.seen.plain_influence is not None
    torch.testing.assert_close(recording.seen.plain_influence(), influence_of(IMAGES, LABELS, q))


def exact_gradient() -> list[Tensor]:
    """−∂/∂φ of Σ_z P_φ(z) ⟨q, ∇θ ℓ_b(z, φ)⟩, averaged over examples, by enumerating every draw z."""
    outcomes = list(itertools.product(range(3), (False, True), (-1.0, 1.0), repeat=2))
    shape = (2, len(outcomes))
    choice = torch.tensor([[z[0], z[3]] for z in outcomes]).T
    applied = torch.tensor([[z[1], z[4]] for z in outcomes]).T
    sign = torch.tensor([[z[2], z[5]] for z in outcomes], dtype=torch.float64).T
    draw = Draw(choice, applied, POLICY.magnitude.gather(1, choice), sign)
    assert draw.choice.shape == shape
    probability = POLICY.log_prob(draw).exp() / 4  # two fair signs
    assert float(probability.sum().detach()) == pytest.approx(1)
    q = outer_gradient()
    total = torch.zeros((), dtype=torch.float64)
    for b in range(DIFFERENT):
        augmented = POLICY.augment(BASE[b : b + 1].expand(len(outcomes), -1, -1, -1), draw)
        total = total + (probability * influence_of(augmented, LABELS[b].expand(len(outcomes)), q)).sum() / DIFFERENT
    return [-g for g in torch.autograd.grad(total, list(POLICY.parameters()))]


BASELINES: dict[str, Baseline] = {
    "none": NoBaseline(),
    "batch mean": BatchMean(),
    "leave one out": LeaveOneOut(),
    "class mean": ClassMean(),
    "unaugmented": Unaugmented(),
    "same example": SameExample(),
}


@pytest.fixture(scope="module")
def samples() -> dict[str, Tensor]:
    """Gradients of many outer steps, for each baseline on the same draws: [steps, parameters]."""
    generator = torch.Generator().manual_seed(4)
    found: dict[str, list[Tensor]] = {name: [] for name in BASELINES}
    for _ in range(250):
        draw = POLICY.sample(IMAGES, generator, relaxed=True).pathwise()
        for name, baseline in BASELINES.items():
            given = problem(draw)
            if name == "same example":  # whose draws have to follow each other
                images, labels = (tensor.repeat_interleave(COPIES, 0) for tensor in (BASE, BASE_LABELS))
                given = dataclasses.replace(problem(draw, images, labels), draws=COPIES)
            grads = hypergradient(given, Identity(1.0), estimator=Influence(baseline), check=False).grads
            found[name].append(torch.cat([g.flatten() for g in grads]))
    return {name: torch.stack(values) for name, values in found.items()}


@pytest.mark.parametrize("name", BASELINES)
def test_the_estimate_is_unbiased(name: str, samples: dict[str, Tensor]) -> None:
    exact = torch.cat([g.flatten() for g in exact_gradient()])
    if name == "batch mean":  # its own example is in it: the score part shrinks by 1 − 1/B, the pathwise part does not
        pathwise = slice(2 * 3 + 2 * 3, None)
        scale = torch.full_like(exact, 1 - 1 / COUNT)
        scale[pathwise] = 1
        exact = exact * scale
    values = samples[name]
    error = values.mean(0) - exact
    deviation = values.std(0) / len(values) ** 0.5
    assert (error.abs() < 4.5 * deviation + 1e-12).all(), (error / deviation).abs().max()
    if name in ("class mean", "unaugmented", "same example"):  # of so little variance that the mean itself can be seen
        assert F.cosine_similarity(values.mean(0), exact, dim=0) > 0.95


def test_baselines_lower_the_variance(samples: dict[str, Tensor]) -> None:
    discrete = slice(0, 12)  # selection and application: what a baseline acts on
    variance = {name: float(values[:, discrete].var(0).sum()) for name, values in samples.items()}
    for name in ("leave one out", "class mean", "unaugmented", "same example"):
        assert variance[name] < variance["none"], name


def test_baselines_have_the_values_computed_by_hand() -> None:
    influence = torch.tensor([1.0, 2.0, 6.0, 3.0])
    batch = Batch(influence, torch.tensor([0, 0, 0, 1]), lambda: torch.arange(4.0))
    torch.testing.assert_close(BatchMean()(batch), torch.full((4,), 3.0))
    torch.testing.assert_close(LeaveOneOut()(batch), torch.tensor([11 / 3, 10 / 3, 2.0, 3.0]))
    torch.testing.assert_close(ClassMean()(batch), torch.tensor([4.0, 3.5, 1.5, 3.0]))
    torch.testing.assert_close(Unaugmented()(batch), torch.arange(4.0))
    assert LeaveOneOut()(Batch(influence[:1], None, None)).item() == 0
    torch.testing.assert_close(SameExample()(Batch(influence, None, None, 2)), torch.tensor([2.0, 1.0, 3.0, 6.0]))
    torch.testing.assert_close(
        SameExample()(Batch(torch.tensor([1.0, 2.0, 6.0]), None, None, 3)), torch.tensor([4.0, 3.5, 1.5])
    )
    for draws in (1, 3):
        with pytest.raises(ValueError, match="draws"):
            SameExample()(Batch(influence, None, None, draws))


def hardness_taken_out(draw: Draw, pathwise: int = COUNT) -> list[Tensor]:
    """−∂/∂φ of a_b − β ℓ_b by numpy's regression; the pathwise part is that of the first `pathwise` examples."""
    augmented = POLICY.augment(IMAGES, draw)
    influence, loss = influence_of(augmented, LABELS, outer_gradient()), losses(MODEL.params, augmented)
    beta, constant = np.polyfit(loss.detach().numpy(), influence.detach().numpy(), 1)
    beyond = influence - float(beta) * loss
    advantage = (beyond - float(constant)).detach()
    total = (advantage * POLICY.effect_log_prob(draw)).mean() + beyond[:pathwise].mean()
    return [-g for g in torch.autograd.grad(total, list(POLICY.parameters()), retain_graph=True)]


@pytest.mark.parametrize("kind", [ForwardOverReverse(), DoubleBackward(), FiniteDifference(), Traced()])
def test_same_loss_removes_the_regression_on_the_losses(kind: SecondOrder) -> None:
    draw = POLICY.sample(IMAGES, torch.Generator().manual_seed(5), relaxed=True).pathwise()
    expected = hardness_taken_out(draw)
    found = hypergradient(problem(draw), Identity(1.0), kind, Influence(SameLoss()), check=False).grads
    plain = hypergradient(problem(draw), Identity(1.0), kind, Influence(LeaveOneOut()), check=False).grads
    for a, b, other in zip(found, expected, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
        assert (a - other).norm() > 0.01 * other.norm()


def part(of: slice, p: dict[str, Tensor], x: Tensor) -> Tensor:
    return losses(p, x[of], LABELS[of])


@pytest.mark.parametrize("kind", [ForwardOverReverse(), DoubleBackward(), FiniteDifference(), Traced()])
def test_same_loss_includes_examples_that_are_only_scored(kind: SecondOrder) -> None:
    draw = POLICY.sample(IMAGES, torch.Generator().manual_seed(7), relaxed=True).pathwise()
    smooth, scored = slice(0, 20), slice(20, COUNT)
    terms = [
        Term(functools.partial(part, smooth), 20 / COUNT, 1.0),
        Term(functools.partial(part, scored), 1 - 20 / COUNT, 0.0),
    ]
    given = dataclasses.replace(problem(draw), inner=terms)
    found = hypergradient(given, Identity(1.0), kind, Influence(SameLoss()), check=False).grads
    torch.testing.assert_close(found, tuple(hardness_taken_out(draw, 20)), rtol=1e-6, atol=1e-9)


def test_same_loss_does_not_depend_on_microbatches() -> None:
    draw = POLICY.sample(IMAGES, torch.Generator().manual_seed(6), relaxed=True).pathwise()
    parts = [Term(functools.partial(part, of), (of.stop - of.start) / COUNT) for of in (slice(0, 20), slice(20, COUNT))]
    whole, split = (
        hypergradient(dataclasses.replace(problem(draw), inner=inner), Identity(1.0), estimator=Influence(SameLoss()))
        for inner in (problem(draw).inner, parts)
    )
    torch.testing.assert_close(whole.grads, split.grads)


def test_same_loss_has_the_values_computed_by_hand() -> None:
    losses_, other = torch.tensor([0.0, 1.0, 2.0, 5.0]), torch.tensor([0.3, -0.1, 0.2, 0.4])
    exact = Batch(3.0 * losses_ + 1.0, None, None, losses=losses_)
    torch.testing.assert_close(SameLoss()(exact), exact.influence)  # hardness and nothing else
    assert float(SameLoss().slope(exact)) == pytest.approx(3.0)
    first, second = (Batch(other + c * losses_, None, None, losses=losses_) for c in (0.0, 7.0))
    torch.testing.assert_close(other - SameLoss()(first), second.influence - SameLoss()(second))
    alike = Batch(other, None, None, losses=torch.full((4,), 2.0))
    torch.testing.assert_close(SameLoss()(alike), torch.full((4,), 0.2))
    for count in (50, 64, 100, 2048):  # whose mean is off by rounding, in float32
        same = Batch(1 + torch.randn(count, generator=GENERATOR), None, None, losses=torch.full((count,), 10.0).log())
        assert float(SameLoss().slope(same)) == 0


def test_relaxed_and_influence_agree_on_continuous_draws() -> None:
    """With nothing drawn but the sign, both give the exact derivative in the magnitude."""
    policy = Policy(stages=1, operations=["Brightness"]).double()
    with torch.no_grad():
        policy.application_logits.fill_(50.0)
    draw = policy.sample(IMAGES, relaxed=True)
    results = []
    for estimator, used in ((Relaxed(), draw), (Influence(), draw.pathwise())):
        setting = Problem(
            MODEL.params,
            (policy.magnitude_logits,),
            losses,
            outer,
            inputs=policy.augment(IMAGES, used),
            log_prob=policy.log_prob(used),
        )
        results.append(hypergradient(setting, Identity(1.0), estimator=estimator).grads[0])
    torch.testing.assert_close(results[0], results[1])
    assert results[0].abs() > 1e-6


def test_the_weight_of_a_term_multiplies_the_score() -> None:
    draw = POLICY.sample(IMAGES, relaxed=True).pathwise()
    given = problem(draw)

    uneven = [
        Term(functools.partial(part, of), 3.0 * (of.stop - of.start) / COUNT) for of in (slice(0, 5), slice(5, COUNT))
    ]
    once, thrice = (
        hypergradient(dataclasses.replace(given, inner=inner), Identity(1.0), estimator=Influence()).grads
        for inner in (given.inner, uneven)
    )
    torch.testing.assert_close(tuple(3 * part for part in once), thrice)


@pytest.mark.parametrize(
    ("baseline", "changes", "name"),
    [
        (LeaveOneOut(), {"log_prob": None}, "log-probability"),
        (LeaveOneOut(), {"log_prob": torch.zeros(COUNT)}, "log_prob"),
        (LeaveOneOut(), {"inner": lambda p, x: losses(p, x).mean()}, "reduction='none'"),
        (ClassMean(), {"classes": None}, "ClassMean"),
        (Unaugmented(), {"plain": None}, "Unaugmented"),
    ],
)
def test_missing_and_unfit_inputs_raise(baseline: Baseline, changes: dict[str, Any], name: str) -> None:
    given = dataclasses.replace(problem(POLICY.sample(IMAGES, relaxed=True).pathwise()), **changes)
    with pytest.raises(ValueError, match=name):
        hypergradient(given, estimator=Influence(baseline))
