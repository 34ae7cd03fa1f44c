"""The policy's optimizer in a plain training loop."""

import copy
import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao import Policy, PolicyOptimizer
from madao.hypergrad import (
    Deflated,
    FunctionalModel,
    Identity,
    Influence,
    LeaveOneOut,
    Neumann,
    Problem,
    Relaxed,
    SameExample,
    Status,
    Term,
    Unrolled,
    hypergradient,
)
from madao.hypergrad.hypergradient import pending_hypergradient

GENERATOR = torch.Generator().manual_seed(0)
TRAIN = torch.rand(24, 1, 8, 8, generator=GENERATOR), torch.randint(0, 3, (24,), generator=GENERATOR)
VALIDATION = torch.rand(16, 1, 8, 8, generator=GENERATOR), torch.randint(0, 3, (16,), generator=GENERATOR)


def network(dropout: float = 0.2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(216, 3)
    )


def build(**settings: Any) -> PolicyOptimizer:
    return PolicyOptimizer(Policy(), network(), **({"every": 1} | settings))


def snapshot(policy: Policy) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in policy.parameters()]


def changed(policy: Policy, before: list[Tensor]) -> bool:
    return any(not torch.equal(now, then) for now, then in zip(policy.parameters(), before, strict=True))


@pytest.mark.parametrize("estimator", [None, Relaxed(), Influence(LeaveOneOut())])
def test_acts_on_every_nth_call_after_warmup(estimator: Any) -> None:
    outer = build(every=3, warmup=4, estimator=estimator)
    acted = [outer.step(TRAIN, VALIDATION) is not None for _ in range(12)]
    assert acted == [call in (6, 9, 12) for call in range(1, 13)]
    assert (outer.calls, outer.updates, outer.skipped) == (12, 3, 0)


@pytest.mark.parametrize("estimator", [Relaxed(), Influence()])
def test_only_the_policy_changes(estimator: Any) -> None:
    outer = build(estimator=estimator)
    model, policy = outer.model, outer.policy
    model.train()
    state, before, random_state = copy.deepcopy(model.state_dict()), snapshot(policy), torch.get_rng_state()
    step = outer.step(TRAIN, VALIDATION)
    assert step is not None
    assert step.applied
    assert changed(policy, before)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model.training


def test_the_update_is_the_optimizers() -> None:
    """Plain gradient descent: φ moves by −lr · gradient, and the gradient's length is the one reported."""
    policy = Policy()
    outer = PolicyOptimizer(policy, network(), every=1, optimizer=torch.optim.SGD(policy.parameters(), lr=0.5))
    before = torch.cat([p.flatten() for p in snapshot(policy)])
    step = outer.step(TRAIN, VALIDATION)
    moved = torch.cat([p.flatten() for p in snapshot(policy)]) - before
    assert step is not None
    assert float(moved.norm()) == pytest.approx(0.5 * step.stats.grad_norm, rel=1e-3)


@pytest.mark.parametrize("estimator", [Relaxed(), Influence(LeaveOneOut())])
def test_the_gradient_is_that_of_the_estimator(estimator: Any) -> None:
    """Against the problem written out by hand: a relaxed draw for the one, a scored and pathwise one for the other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(216, 3))
    pure = FunctionalModel(model)
    policy, other = Policy(seed=4), Policy(seed=4)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    outer = PolicyOptimizer(policy, model, every=1, optimizer=optimizer, solver=Identity(1.0), estimator=estimator)
    before = snapshot(policy)
    outer.step(TRAIN, VALIDATION)

    draw = other.sample(TRAIN[0], relaxed=True)
    draw = draw if isinstance(estimator, Relaxed) else draw.pathwise()
    problem = Problem(
        pure.params,
        tuple(other.parameters()),
        lambda p, x: F.cross_entropy(pure(p, x), TRAIN[1], reduction="none"),
        lambda p, _: F.cross_entropy(pure(p, VALIDATION[0]), VALIDATION[1]),
        inputs=other.augment(TRAIN[0], draw),
        log_prob=other.effect_log_prob(draw),
    )
    expected = hypergradient(problem, Identity(1.0), estimator=estimator).grads
    for now, then, gradient in zip(policy.parameters(), before, expected, strict=True):
        torch.testing.assert_close(then - now.detach(), gradient, rtol=1e-3, atol=1e-6)


def test_a_long_gradient_is_clipped() -> None:
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e4)
    outer = PolicyOptimizer(policy, network(), every=1, optimizer=optimizer, clip=1e-5)
    before = torch.cat([p.flatten() for p in snapshot(policy)])
    step = outer.step(TRAIN, VALIDATION)
    assert step is not None
    assert step.stats.grad_norm > 1e-5
    moved = torch.cat([p.flatten() for p in snapshot(policy)]) - before
    assert float(moved.norm()) == pytest.approx(0.1, rel=1e-3)


def test_validation_loaders_start_anew_and_batches_work() -> None:
    seen: list[int] = []

    class Loader:
        def __iter__(self) -> Any:
            for number in range(2):
                seen.append(number)
                yield VALIDATION

    outer, loader = build(), Loader()
    for _ in range(5):
        outer.step(TRAIN, loader)
    assert seen == [0, 1, 0, 1, 0]
    outer.step(TRAIN, [VALIDATION[0], VALIDATION[1]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="the validation loader gave no batch"):
        outer.step(TRAIN, [])


def test_a_diverging_or_infinite_step_is_skipped_counted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    for settings, status in (
        ({"solver": Neumann(20, 1e4)}, (Status.DIVERGING, Status.NON_FINITE)),
        (
            {"loss": lambda o, t, reduction="mean": F.cross_entropy(o, t, reduction=reduction) * torch.inf},
            (Status.NON_FINITE,),
        ),
    ):
        outer = build(**settings)
        before = snapshot(outer.policy)
        with caplog.at_level(logging.WARNING, "madao"):
            step = outer.step(TRAIN, VALIDATION)
        assert step is not None
        assert not step.applied
        assert step.stats.status in status
        assert not changed(outer.policy, before)
        assert (outer.updates, outer.skipped) == (0, 1)
        assert "outer step at call 1 skipped (1 so far)" in caplog.text


def test_resuming_goes_on_exactly() -> None:
    def run(outer: PolicyOptimizer, steps: int) -> None:
        for _ in range(steps):
            outer.step(TRAIN, VALIDATION)

    whole = build(every=2)
    run(whole, 12)
    first = build(every=2)
    run(first, 7)
    second = build(every=2)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.policy.load_state_dict(first.policy.state_dict())
    run(second, 5)
    assert (second.calls, second.updates) == (12, 6)
    for a, b in zip(whole.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_uint8_images_and_a_transform() -> None:
    seen: list[Tensor] = []

    def transform(images: Tensor) -> Tensor:
        seen.append(images.detach())
        return (images - 0.5) / 0.25

    outer = build(transform=transform)
    step = outer.step(
        ((TRAIN[0] * 255).to(torch.uint8), TRAIN[1]), ((VALIDATION[0] * 255).to(torch.uint8), VALIDATION[1])
    )
    assert step is not None
    assert step.applied
    assert [len(images) for images in seen] == [24, 24, 16]  # augmented, by another draw, validation; none for nothing
    assert all(float(images.min()) >= 0 and float(images.max()) <= 1 + 1e-6 for images in seen)


def test_losses_as_modules_and_functions() -> None:
    by_name = []
    for loss in (F.cross_entropy, nn.CrossEntropyLoss(), lambda o, t: F.cross_entropy(o, t, reduction="none")):
        outer = build(loss=loss)
        outer.step(TRAIN, VALIDATION)
        by_name.append(torch.cat([p.flatten() for p in snapshot(outer.policy)]))
    assert torch.equal(by_name[0], by_name[1])
    assert torch.equal(by_name[0], by_name[2])
    module = nn.CrossEntropyLoss(label_smoothing=0.1)
    build(loss=module).step(TRAIN, VALIDATION)
    assert module.reduction == "mean"
    with pytest.raises(ValueError, match="use reduction='none'"):
        build(loss=lambda o, t: F.cross_entropy(o, t)).step(TRAIN, VALIDATION)


def test_microbatches_and_curvature_batch() -> None:
    """Without BatchNorm and dropout a microbatch changes nothing; a curvature batch changes the Hessian alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(216, 3)).double()
    train, validation = ((b[0].double(), b[1]) for b in (TRAIN, VALIDATION))
    results = []
    for settings in ({}, {"microbatch": 7}, {"curvature_batch": 24}, {"curvature_batch": 5}):
        policy = Policy().double()
        optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
        outer = PolicyOptimizer(policy, model, every=1, solver=Neumann(3, 0.02), optimizer=optimizer, **settings)  # type: ignore[arg-type]
        before = torch.cat([p.flatten() for p in snapshot(policy)])
        outer.step(train, validation)
        results.append(torch.cat([p.flatten() for p in snapshot(policy)]) - before)
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(results[2], results[0], rtol=1e-9, atol=1e-15)
    assert results[0].norm() > 0
    assert (results[3] - results[0]).norm() > 1e-4 * results[0].norm()


def test_residual_is_measured_now_and_then() -> None:
    outer = build(check_every=3, solver=Neumann())
    residuals = [outer.step(TRAIN, VALIDATION) for _ in range(6)]
    assert [step is not None and step.stats.residual is not None for step in residuals] == [True, False, False] * 2
    never = build(check_every=0, solver=Identity(1.0)).step(TRAIN, VALIDATION)
    assert never is not None
    assert never.stats.residual is None


def test_unrolled_reaches_every_parameter() -> None:
    outer = build(solver=Unrolled(2))
    before = snapshot(outer.policy)
    outer.step(TRAIN, VALIDATION)
    assert all(not torch.equal(now, then) for now, then in zip(outer.policy.parameters(), before, strict=True))


def test_a_partly_frozen_policy_learns_the_rest() -> None:
    policy = Policy()
    policy.application_logits.requires_grad_(False)
    outer = PolicyOptimizer(policy, network(), every=1)
    before = snapshot(policy)
    outer.step(TRAIN, VALIDATION)
    kept = {name: torch.equal(now, then) for (name, now), then in zip(policy.named_parameters(), before, strict=True)}
    assert kept == {"selection_logits": False, "application_logits": True, "magnitude_logits": False}


def test_losses_with_several_values_an_example() -> None:
    targets = torch.rand(24, 3, generator=torch.Generator().manual_seed(1))
    step = build(loss=F.mse_loss).step((TRAIN[0], targets), (VALIDATION[0], targets[:16]))
    assert step is not None
    assert step.applied


def test_microbatches_bound_every_pass_and_have_masks_of_their_own() -> None:
    sizes: list[int] = []

    class Watch(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            sizes.append(len(images))
            return images

    model = nn.Sequential(Watch(), nn.Flatten(), nn.Linear(64, 3))
    PolicyOptimizer(Policy(), model, every=1, microbatch=5).step(TRAIN, VALIDATION)
    assert max(sizes) == 5
    outputs: list[Tensor] = []

    class Keep(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            outputs.append(torch.nn.functional.dropout(torch.ones(5, 64), 0.5))
            return images

    model = nn.Sequential(Keep(), nn.Flatten(), nn.Linear(64, 3))
    PolicyOptimizer(Policy(), model, every=1, microbatch=5, solver=Identity(1.0), check_every=0).step(TRAIN, VALIDATION)
    assert len({output.numpy().tobytes() for output in outputs}) >= 5


def test_a_foreign_optimizer_and_batches_of_three() -> None:
    with pytest.raises(ValueError, match="the optimizer holds no parameter of the policy"):
        build(optimizer=torch.optim.SGD(network().parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"a validation batch must be \(images, targets\), got tuple of 3"):
        build().step(TRAIN, [(*VALIDATION, 1)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"warmup": -1}, "warmup must be a whole number of at least 0"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"microbatch": 0}, "microbatch must be a whole number of at least 1"),
    ],
)
def test_mistakes(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**settings)


def test_several_draws_of_each_image_are_one_larger_batch() -> None:
    """What the policy is drawn for, the targets and what goes with the images are repeated alike."""
    seen: list[Tensor] = []

    def transform(images: Tensor, numbers: Tensor) -> Tensor:
        seen.append(numbers)
        return images

    model, estimator = network(dropout=0.0), Influence(SameExample())
    repeated = [tensor.repeat_interleave(3, 0) for tensor in TRAIN]
    policies = [Policy(seed=5), Policy(seed=5)]
    settings: dict[str, Any] = {"every": 1, "estimator": Influence(LeaveOneOut()), "solver": Identity(1.0), "clip": 1e9}
    several = PolicyOptimizer(policies[0], model, draws=3, **settings)
    one = PolicyOptimizer(policies[1], model, **settings)
    steps = several.step((*TRAIN, torch.arange(24)), VALIDATION, transform), one.step((*repeated,), VALIDATION)
    assert torch.equal(seen[0], torch.arange(24).repeat_interleave(3))
    assert steps[0] is not None
    assert steps[1] is not None
    assert steps[0].stats.grad_norm == pytest.approx(steps[1].stats.grad_norm, rel=1e-5)
    step = PolicyOptimizer(Policy(), model, draws=3, **settings | {"estimator": estimator}).step(TRAIN, VALIDATION)
    assert step is not None
    assert step.applied
    with pytest.raises(ValueError, match="draws must be a whole number of at least 1, got 0"):
        build(draws=0)


def test_powers_of_the_hessian_that_do_not_count_are_left_out() -> None:
    """Each tenth of a per cent of the series, as the last check found it."""
    outer = build(solver=Neumann(5, 1e-3, 0.01), check_every=3, estimator=Relaxed())
    found = [outer.step(TRAIN, VALIDATION) for _ in range(6)]
    products = [step.stats.products for step in found if step is not None]
    assert products[0] == products[3] == 6  # all, and the residual's
    assert products[1] == products[2] < 5
    resumed = build(solver=Neumann(5, 1e-3, 0.01), check_every=3, estimator=Relaxed())
    resumed.load_state_dict(outer.state_dict())
    resumed.updates += 1  # as if the step of the check were just done
    after = resumed.step(TRAIN, VALIDATION)
    assert after is not None
    assert after.stats.products == products[1]


@pytest.mark.parametrize("scale", [1e-4, 1e-2])
def test_a_shortened_series_gives_the_same_gradient(scale: float) -> None:
    def gradient(tolerance: float) -> Tensor:
        policy = Policy()
        optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
        solver = Neumann(5, scale, tolerance)
        outer = PolicyOptimizer(
            policy, network(0.0), every=1, solver=solver, estimator=Relaxed(), check_every=2, optimizer=optimizer
        )
        outer.step(TRAIN, VALIDATION)
        before = torch.cat([p.flatten() for p in snapshot(policy)])
        outer.step(TRAIN, VALIDATION)
        return torch.cat([p.flatten() for p in snapshot(policy)]) - before

    exact, short = gradient(0.0), gradient(0.02)
    assert 0 < (short - exact).norm() < 0.02 * exact.norm()


def test_a_long_series_is_summed_as_it_was() -> None:
    outer = build(solver=Neumann(5, 0.5, 0.01), check_every=2, estimator=Relaxed())
    found = [outer.step(TRAIN, VALIDATION) for _ in range(2)]
    assert [step.stats.products for step in found if step is not None] == [6, 5]
    assert outer.state_dict()["products"] is None


def test_where_all_powers_count_no_more_is_spent_than_without_a_tolerance() -> None:
    outer = build(solver=Neumann(2, 0.02, 1e-9), check_every=3, estimator=Relaxed())
    found = [outer.step(TRAIN, VALIDATION) for _ in range(3)]
    assert [step.stats.products for step in found if step is not None] == [3, 2, 2]


def test_what_is_deflated_by_is_another_draw_than_what_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[Problem] = []

    def note(problem: Problem, *arguments: Any, **settings: Any) -> Any:
        problems.append(problem)
        return pending_hypergradient(problem, *arguments, **settings)

    monkeypatch.setattr("madao.outer.policy_optimizer.pending_hypergradient", note)
    build().step(TRAIN, VALIDATION)
    (problem,) = problems
    scored, again = problem.inputs
    assert scored.requires_grad
    assert not again.requires_grad
    assert (scored != again).flatten(1).any(1).float().mean() > 0.5
    params = problem.params
    (inner,), (curvature,) = problem.inner, problem.curvature  # type: ignore[misc]

    def losses(term: Term, *inputs: Tensor) -> Tensor:
        assert term.of is not None
        return term.loss(params, term.of(inputs))

    assert torch.equal(losses(inner, scored, again), losses(inner, scored, scored))
    assert torch.equal(losses(curvature, scored, again), losses(inner, again, again))
    assert not torch.equal(losses(curvature, scored, again), losses(inner, scored, again))


def test_another_solvers_memory_is_not_gone_on_from() -> None:
    outer = build(solver=Deflated(3))
    outer.step(TRAIN, VALIDATION)
    for solver in (Deflated(4), Neumann(2)):
        other = build(solver=solver)
        other.load_state_dict(outer.state_dict())
        assert other.step(TRAIN, VALIDATION) is not None
