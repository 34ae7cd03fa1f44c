"""Adam with a pull back: against its own equation, its closed forms, and plain Adam."""

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from madao.outer.policy_adam import PolicyAdam


def after_step(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, gradients: Tensor) -> None:
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()


def test_without_a_pull_it_is_adam_without_momentum() -> None:
    gradients = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mine, theirs = (nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float64)) for _ in range(2))
    after_step(PolicyAdam([mine], 0.1), mine, gradients)
    after_step(torch.optim.Adam([theirs], lr=0.1, betas=(0.0, 0.99)), theirs, gradients)
    assert torch.equal(mine, theirs)


def test_its_equation_step_by_step() -> None:
    gradients = torch.randn(30, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    start = torch.tensor([0.5, 0.0, -2.0, 3.0], dtype=torch.float64)
    parameter = nn.Parameter(start.clone())
    after_step(PolicyAdam([parameter], 0.2, pull=0.7), parameter, gradients)
    expected, square = start.clone(), torch.zeros(4, dtype=torch.float64)
    for count, gradient in enumerate(gradients, 1):
        square = 0.99 * square + 0.01 * gradient**2
        root = (square / (1 - 0.99**count)).sqrt() + 1e-8
        expected = expected - 0.2 * (gradient / root + 0.7 * (expected - start))
    torch.testing.assert_close(parameter.detach(), expected)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 2.0])
def test_a_logit_moves_as_far_as_there_is_evidence(ratio: float) -> None:
    """Gradients of mean `ratio` in deviations: φ ends about φ₀ − m / λ, m = ratio / √(1 + ratio²)."""
    noise = torch.randn(1200, 400, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    parameter = nn.Parameter(torch.ones(400, dtype=torch.float64))
    after_step(PolicyAdam([parameter], 0.05, pull=0.5), parameter, 1e-3 * (ratio + noise))
    moved = parameter.detach() - 1
    assert moved.mean().item() == pytest.approx(-ratio / math.sqrt(1 + ratio**2) / 0.5, abs=0.05)
    # What is left of the noise, a gradient's share of which is 1 / √(1 + ratio²).
    assert moved.std().item() == pytest.approx(math.sqrt(0.05 / (2 * 0.5) / (1 + ratio**2)), rel=0.15)


def test_the_rate_of_the_moment_counts_and_what_has_no_gradient_stays() -> None:
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = PolicyAdam([first, second], 0.1, pull=1.0)
    with torch.no_grad():
        first.add_(1.0)
        second.add_(1.0)
    for group in optimizer.param_groups:
        group["lr"] = 0.25
    first.grad = torch.zeros(1)
    optimizer.step()
    assert first.item() == 1.75
    assert second.item() == 2.0


def test_it_goes_on_from_a_saved_state_wherever_the_policy_is_by_then() -> None:
    gradients = torch.randn(20, 3, generator=torch.Generator().manual_seed(3))
    whole = nn.Parameter(torch.zeros(3))
    after_step(PolicyAdam([whole], 0.1, pull=1.0), whole, gradients)
    first = nn.Parameter(torch.zeros(3))
    before = PolicyAdam([first], 0.1, pull=1.0)
    after_step(before, first, gradients[:9])
    second = nn.Parameter(first.detach().clone())
    after = PolicyAdam([second], 0.1, pull=1.0)
    after.load_state_dict(before.state_dict())
    after_step(after, second, gradients[9:])
    assert torch.equal(whole, second)


def test_a_state_of_plain_adam_can_be_gone_on_from() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    plain = torch.optim.Adam([parameter], lr=0.1, betas=(0.0, 0.99))
    after_step(plain, parameter, torch.ones(2, 3))
    optimizer = PolicyAdam([parameter], 0.1, pull=1.0)
    optimizer.load_state_dict(plain.state_dict())
    here = parameter.detach().clone()
    with torch.no_grad():
        parameter.add_(1.0)
    after_step(optimizer, parameter, torch.zeros(1, 3))
    torch.testing.assert_close(parameter.detach(), here + 0.9)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_a_copy_goes_on_as_the_original(again: Callable[[PolicyAdam], PolicyAdam]) -> None:
    gradients = torch.randn(20, 3, generator=torch.Generator().manual_seed(4))
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = PolicyAdam([parameter], 0.1, pull=1.0)
    after_step(optimizer, parameter, gradients[:9])
    other = again(optimizer)
    (twin,) = other.param_groups[0]["params"]
    after_step(optimizer, parameter, gradients[9:])
    after_step(other, twin, gradients[9:])
    assert torch.equal(parameter, twin)


def test_groups_have_their_own_starts_and_rates() -> None:
    first, second, third = (nn.Parameter(torch.full((1,), float(value))) for value in (1, 10, 100))
    optimizer = PolicyAdam([first], 0.1, pull=1.0)
    optimizer.add_param_group({"params": [second], "lr": 0.5})
    optimizer.add_param_group({"params": [third], "pull": 30.0})  # which is as much as there is to go back
    with torch.no_grad():
        for parameter in (first, second, third):
            parameter.add_(1.0).grad = torch.zeros(1)
    optimizer.step()
    assert [first.item(), second.item(), third.item()] == pytest.approx([1.9, 10.5, 100.0])


def test_a_closure_is_asked_first() -> None:
    parameter = nn.Parameter(torch.ones(1))
    optimizer = PolicyAdam([parameter], 0.1, pull=1.0)
    with torch.no_grad():
        parameter.add_(1.0)

    def closure() -> Tensor:
        assert parameter.item() == 2.0
        loss = parameter.sum() * 0
        loss.backward()
        return loss

    assert optimizer.step(closure) == 0
    assert parameter.item() == pytest.approx(1.9)


def test_the_guard_is_its_equation() -> None:
    gradients = torch.randn(30, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.5
    start = torch.tensor([0.5, 0.0, -2.0, 3.0], dtype=torch.float64)
    free, guarded = (nn.Parameter(start.clone()) for _ in range(2))
    plain, optimizer = PolicyAdam([free], 0.2, pull=0.1), PolicyAdam([guarded], 0.2, pull=0.1, guard=1.5)
    for count, gradient in enumerate(gradients, 1):
        after_step(plain, free, gradient[None])
        after_step(optimizer, guarded, gradient[None])
        walk = free.detach() - start
        kept = (1 - 1.5**2 * count * 0.2**2 / walk**2).clamp(min=0)
        torch.testing.assert_close(guarded.detach(), start + walk * kept)


@pytest.mark.parametrize(("signal", "least", "most"), [(0.0, 0.0, 0.7), (1.0, 4.0, 5.0)])
def test_the_guard_holds_back_noise_and_hardly_a_signal(signal: float, least: float, most: float) -> None:
    """After 48 steps at 0.15. Noise alone would walk 1.04."""
    gradients = torch.randn(48, 1000, generator=torch.Generator().manual_seed(6), dtype=torch.float64) + signal
    parameter = nn.Parameter(torch.ones(1000, dtype=torch.float64))
    after_step(PolicyAdam([parameter], 0.15, guard=1.0), parameter, gradients)
    moved = (parameter.detach() - 1).square().mean().sqrt().item()
    assert least <= moved <= most
    if not signal:
        assert (parameter == 1).double().mean() > 0.6


def test_a_guarded_walk_goes_on_from_a_saved_state() -> None:
    gradients = torch.randn(20, 3, generator=torch.Generator().manual_seed(7)) + 0.5
    whole = nn.Parameter(torch.zeros(3))
    after_step(PolicyAdam([whole], 0.1, guard=1.0), whole, gradients)
    first = nn.Parameter(torch.zeros(3))
    before = PolicyAdam([first], 0.1, guard=1.0)
    after_step(before, first, gradients[:9])
    second = nn.Parameter(first.detach().clone())
    after = PolicyAdam([second], 0.1, guard=1.0)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    after_step(after, second, gradients[9:])
    assert torch.equal(whole, second)


@pytest.mark.parametrize("guard", [-1.0, math.nan, math.inf])
def test_a_guard_that_is_none_is_refused(guard: float) -> None:
    with pytest.raises(ValueError, match=f"guard must be at least 0 and finite, got {guard}"):
        PolicyAdam([nn.Parameter(torch.zeros(1))], guard=guard)


@pytest.mark.parametrize("pull", [-1.0, math.nan, math.inf])
def test_a_pull_that_is_none_is_refused(pull: float) -> None:
    with pytest.raises(ValueError, match="pull"):
        PolicyAdam([nn.Parameter(torch.zeros(1))], pull=pull)
