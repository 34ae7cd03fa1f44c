"""The policy's optimizer in a plain training loop."""

import copy
import io
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
    Status,
    Traced,
    Unrolled,
    hypergradient,
)
from madao.outer import ComputeOptions, OuterStep
from tests.helpers.outer_steps import (
    TRAIN,
    VALIDATION,
    build,
    descent,
    flat,
    network,
    policy_optimizer,
    run,
    smooth_network,
)


@pytest.mark.parametrize(("every", "warmup"), [(1, 0), (1, 3), (3, 0), (3, 3), (3, 4), (3, 5), (2, 5)])
def test_it_acts_at_every_nth_call_after_warmup(every: int, warmup: int) -> None:
    outer, other = (build(every=every, warmup=warmup, solver=Deflated(3)) for _ in range(2))
    for call in range(1, 10):
        expected = call > warmup and call % every == 0
        assert outer.due() is outer.due() is expected
        assert (outer.step(TRAIN, VALIDATION) is not None) is expected
        assert other.tick() is expected
        if expected:
            other.update(TRAIN, VALIDATION)
    assert (outer.calls, outer.updates, outer.skipped) == (9, 9 // every - warmup // every, 0)
    assert torch.equal(flat(other.policy), flat(outer.policy)), "tick and update are step"


@pytest.mark.parametrize("estimator", [Relaxed(), Influence()])
def test_only_the_policy_changes(estimator: Any) -> None:
    outer = build(estimator=estimator)
    model, policy = outer.model, outer.policy
    model.train()
    state, before, random_state = copy.deepcopy(model.state_dict()), flat(policy), torch.get_rng_state()
    assert outer.update(TRAIN, VALIDATION).applied
    assert not torch.equal(flat(policy), before)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in (*model.parameters(), *policy.parameters()))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model.training


@pytest.mark.parametrize(("clip", "sign"), [(None, 1.0), (1e-5, 1.0), (None, -1.0), (1e9, 1.0)])
def test_the_update_is_that_of_the_optimizer(clip: float | None, sign: float) -> None:
    policy = Policy()
    outer = policy_optimizer(policy, network(), optimizer=descent(policy, 0.5), clip=clip)
    outer.sign = lambda update: sign
    before = flat(policy)
    gradient = torch.cat([part.flatten() for part in build().gradient(TRAIN, VALIDATION)[0]])
    norm = outer.update(TRAIN, VALIDATION).stats.grad_norm
    assert norm == pytest.approx(float(gradient.norm()))
    shortened = gradient * min(1.0, (clip or torch.inf) / norm)
    torch.testing.assert_close(flat(policy) - before, -0.5 * sign * shortened, rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("estimator", [Relaxed(), Influence(LeaveOneOut())])
def test_the_gradient_is_that_of_the_estimator(estimator: Any) -> None:
    """The problem is written out: a relaxed draw for one estimator, a scored and pathwise draw for the other."""
    model = smooth_network()
    pure, other = FunctionalModel(model), Policy(seed=4)
    outer = policy_optimizer(Policy(seed=4), model, solver=Identity(1.0), estimator=estimator)
    found, _ = outer.gradient(TRAIN, VALIDATION)

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
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_a_gradient_is_taken_without_an_update() -> None:
    outer, other = build(), build()
    before = flat(outer.policy)
    gradients, stats = outer.gradient(TRAIN, VALIDATION)
    assert torch.equal(flat(outer.policy), before)
    assert (outer.calls, outer.updates) == (0, 0)
    assert stats == other.update(TRAIN, VALIDATION).stats
    assert [gradient.shape for gradient in gradients] == [parameter.shape for parameter in outer.policy.parameters()]


def test_a_validation_loader_restarts_and_a_batch_is_used_as_it_is() -> None:
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
    with pytest.raises(ValueError, match="batch"):
        outer.step(TRAIN, [])
    with pytest.raises(ValueError, match="3"):
        outer.step(TRAIN, [(*VALIDATION, 1)])  # type: ignore[list-item]


def infinite(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(outputs, targets, reduction=reduction) * torch.inf


@pytest.mark.parametrize("settings", [{"solver": Neumann(20, 1e4)}, {"loss": infinite}])
def test_an_unusable_step_is_skipped_counted_and_logged(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    outer = build(**settings)
    before = flat(outer.policy)
    with caplog.at_level(logging.WARNING, "madao"):
        step = outer.update(TRAIN, VALIDATION)
    assert not step.applied
    assert step.stats.status in (Status.DIVERGING, Status.NON_FINITE)
    assert torch.equal(flat(outer.policy), before)
    assert (outer.updates, outer.skipped) == (0, 1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_step_that_is_not_finite_is_not_remembered() -> None:
    outer = build(solver=Deflated(3))
    run(outer, 1)
    rows = outer.state_dict()["recent"]["rows"].clone()
    step = outer.update(TRAIN, VALIDATION, train_transform=lambda images: images * float("nan"))
    assert step.stats.status is Status.NON_FINITE
    assert torch.equal(outer.state_dict()["recent"]["rows"], rows)
    assert run(outer, 1)[0].applied


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("memory", [1, 2, 3, 16])
def test_a_resumed_optimizer_continues_exactly(memory: int) -> None:
    settings: dict[str, Any] = {"every": 2, "solver": Deflated(memory), "weight_decay": 0.1}

    def resumed(state: dict[str, Any]) -> tuple[PolicyOptimizer, list[OuterStep]]:
        outer = build(**settings)
        outer.load_state_dict(state)
        outer.policy.load_state_dict(first.policy.state_dict())
        return outer, run(outer, 7)

    whole, first = build(**settings), build(**settings)
    expected = run(whole, 14)
    run(first, 7)
    saved = saved_and_loaded(first.state_dict())
    second, steps = resumed(saved)
    assert steps == expected[3:]
    assert (second.calls, second.updates, second.skipped) == (14, 7, 0)
    assert torch.equal(flat(whole.policy), flat(second.policy))
    recent, other = whole.state_dict()["recent"], second.state_dict()["recent"]
    assert recent["owner"] == other["owner"] == [repr(Deflated(memory)), *dict(whole.model.named_parameters())]
    assert torch.equal(recent["rows"], other["rows"])
    assert not recent["rows"].requires_grad  # or it would hold the graph of every step
    assert recent["oldest"] == other["oldest"] == (7 % (memory - 1) if memory > 1 else 0)
    if memory > 1:  # the history matters, so the equality above means something
        _, forgetful = resumed(saved | {"recent": None})
        assert forgetful[0].stats.q_norm != expected[3].stats.q_norm


def test_the_state_of_another_solver_is_ignored() -> None:
    outer = build(solver=Deflated(3))
    run(outer, 1)
    for solver in (Deflated(4), Neumann(2), Identity(0.05)):
        other, fresh = build(solver=solver), build(solver=solver)
        other.load_state_dict(outer.state_dict())
        other.updates = fresh.updates  # so that both check the residual
        assert run(other, 1)[0].stats.q_norm == run(fresh, 1)[0].stats.q_norm
        assert (other.state_dict()["recent"] is None) is not isinstance(solver, Deflated)


def test_training_gradients_are_remembered() -> None:
    outer = build(solver=Deflated(4))
    assert outer.state_dict()["recent"] is None
    counts = []
    for _ in range(5):
        run(outer, 1)
        rows = outer.state_dict()["recent"]["rows"]
        counts.append(len({tuple(row.tolist()) for row in rows if row.any()}))
    assert counts == [1, 2, 3, 3, 3]


def test_gradients_of_other_parameters_are_forgotten() -> None:
    outer = build(solver=Deflated(3))
    run(outer, 3)
    size = outer.state_dict()["recent"]["rows"].shape[1]
    next(outer.model.parameters()).requires_grad_(False)
    run(outer, 1)
    rows = outer.state_dict()["recent"]["rows"]
    assert rows.shape == (2, size - next(outer.model.parameters()).numel())
    assert rows[0].any()
    assert not rows[1].any()


def test_a_loss_is_a_module_or_a_function() -> None:
    found = []
    for loss in (F.cross_entropy, nn.CrossEntropyLoss(), lambda o, t: F.cross_entropy(o, t, reduction="none")):
        outer = build(loss=loss)
        run(outer, 1)
        found.append(flat(outer.policy))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    module = nn.CrossEntropyLoss(label_smoothing=0.1)
    run(build(loss=module), 1)
    assert module.reduction == "mean"
    with pytest.raises(ValueError, match="reduction='none'"):
        run(build(loss=lambda o, t: F.cross_entropy(o, t)), 1)
    targets = torch.rand(24, 3, generator=torch.Generator().manual_seed(1))  # several values an example
    assert build(loss=F.mse_loss).update((TRAIN[0], targets), (VALIDATION[0], targets[:16])).applied


def test_the_residual_is_measured_now_and_then() -> None:
    steps = run(build(check_every=3, solver=Neumann()), 6)
    assert [step.stats.residual is not None for step in steps] == [True, False, False] * 2
    for settings in ({"check_every": 0, "solver": Identity(1.0)}, {"check_every": 1, "solver": Deflated()}):
        assert run(build(**settings), 1)[0].stats.residual is None


def test_unrolled_reaches_every_parameter() -> None:
    outer = build(solver=Unrolled(2))
    before = [parameter.detach().clone() for parameter in outer.policy.parameters()]
    run(outer, 1)
    assert all(not torch.equal(now, then) for now, then in zip(outer.policy.parameters(), before, strict=True))


def test_a_partly_frozen_policy_learns_the_rest() -> None:
    policy = Policy()
    policy.application_logits.requires_grad_(False)
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    run(policy_optimizer(policy, network()), 1)
    kept = {name: torch.equal(parameter, before[name]) for name, parameter in policy.named_parameters()}
    assert kept == {"selection_logits": False, "application_logits": True, "magnitude_logits": False}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in ("every", "views", "clip", "microbatch", "draws")),
        *((name, -1) for name in ("warmup", "check_every")),
        ("pathwise_batch", 1.5),
        ("hvp", Traced()),
        ("optimizer", torch.optim.SGD(network().parameters(), lr=0.1)),
    ],
)
def test_mistakes_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="record" if name == "hvp" else name):
        build(**{name: value})


def test_powers_of_the_hessian_that_do_not_count_are_left_out() -> None:
    settings: dict[str, Any] = {"solver": Neumann(5, 1e-3, 0.01), "check_every": 3, "estimator": Relaxed()}
    outer, resumed = build(**settings), build(**settings)
    products = [step.stats.products for step in run(outer, 6)]
    assert products[0] == products[3] == 6  # all, and the residual's
    assert products[1] == products[2] < 5
    resumed.load_state_dict(outer.state_dict())
    resumed.updates += 1  # as if the step of the check were just done
    assert run(resumed, 1)[0].stats.products == products[1]


@pytest.mark.parametrize("scale", [1e-4, 1e-2])
def test_a_shortened_series_gives_the_same_gradient(scale: float) -> None:
    def gradient(tolerance: float) -> Tensor:
        policy, solver = Policy(), Neumann(5, scale, tolerance)
        settings: dict[str, Any] = {"estimator": Relaxed(), "check_every": 2, "optimizer": descent(policy)}
        outer = policy_optimizer(policy, network(0.0), solver=solver, **settings)
        run(outer, 1)
        before = flat(policy)
        run(outer, 1)
        return flat(policy) - before

    exact, short = gradient(0.0), gradient(0.02)
    assert 0 < (short - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize(
    ("solver", "products"), [(Neumann(5, 0.5, 0.01), [6, 5, 5]), (Neumann(2, 0.02, 1e-9), [3, 2, 2])]
)
def test_a_series_that_cancels_or_needs_all_powers_is_summed_whole(solver: Neumann, products: list[int]) -> None:
    outer = build(solver=solver, check_every=3, estimator=Relaxed())
    assert [step.stats.products for step in run(outer, 3)] == products
    assert outer.state_dict()["products"] is None


def test_arguments_after_the_loss_are_named() -> None:
    with pytest.raises(TypeError):
        PolicyOptimizer(Policy(), network(), F.cross_entropy, 30)  # type: ignore[call-arg]
    outer = PolicyOptimizer(Policy(), network(), F.cross_entropy, every=1, compute=ComputeOptions(pathwise_batch=4))
    assert outer.compute.pathwise_batch == 4
    assert build(estimator=Relaxed(), pathwise_batch=4).compute.pathwise_batch is None
