"""A solver and an estimator that are defined here train a policy, without a change anywhere else."""

import dataclasses
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from madao import Policy, PolicyOptimizer
from madao.hypergrad import Estimator, Influence, Solution, Solver, Stats, System
from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.flat_problem import FlatProblem
from madao.hypergrad.pytree import Vector, norm, scaled
from madao.hypergrad.result import series_status

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(24, 1, 8, 8, generator=GENERATOR)
LABELS = torch.randint(0, 3, (24,), generator=GENERATOR)
CALLS: list[Any] = []


@dataclasses.dataclass(frozen=True)
class Averaged(Solver):
    """The mean of v over all calls, so that there is something to remember."""

    scale: float = 1.0
    needs_independent_draw: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    def solve(self, system: System, state: Any = None) -> Solution:
        CALLS.append((self, state, system.gradient()))
        count, total = (0, None) if state is None else state
        total = system.v if total is None else tuple(t + v for t, v in zip(total, system.v, strict=True))
        q = scaled(total, self.scale / (count + 1))
        return Solution(q, norm(system.v).reshape(1), None, 0, series_status, carry=(count + 1, total))

    def prepare(self, state: Any, params: Any, check: bool) -> Any:
        return state

    def update(self, state: Any, carry: Any, stats: Stats) -> Any:
        return carry

    def state_dict(self, state: Any) -> dict[str, Any]:
        return {"average": state}

    def load_state(self, saved: dict[str, Any], device: torch.device) -> Any:
        return saved["average"]


@dataclasses.dataclass(frozen=True)
class Doubled(Estimator):
    """Twice the gradient by influence."""

    inside: Influence = dataclasses.field(default_factory=Influence)
    scores_draws: ClassVar[bool] = True

    def gradient(self, problem: FlatProblem, q: Vector, second_order: SecondOrder) -> Vector:
        CALLS.append((self, q))
        return scaled(self.inside.gradient(problem, q, second_order), 2.0)


def build(solver: Solver, estimator: Estimator) -> PolicyOptimizer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3))
    policy = Policy(seed=0)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    return PolicyOptimizer(policy, model, every=1, optimizer=optimizer, solver=solver, estimator=estimator)


def trained(outer: PolicyOptimizer, steps: int) -> Tensor:
    for _ in range(steps):
        step = outer.step((IMAGES, LABELS), (IMAGES, LABELS))
        assert step is not None
        assert step.applied
    return torch.cat([parameter.detach().flatten().clone() for parameter in outer.policy.parameters()])


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


def test_a_policy_learns_by_them() -> None:
    start = torch.cat([parameter.detach().flatten() for parameter in Policy(seed=0).parameters()])
    doubled = trained(build(Averaged(), Doubled()), 1) - start
    single = trained(build(Averaged(), Influence()), 1) - start
    assert single.norm() > 0
    torch.testing.assert_close(doubled, 2 * single)
    by_solver = [type(call[0]) for call in CALLS]
    assert by_solver == [Averaged, Doubled, Averaged]
    training_gradient: Vector = CALLS[0][2]
    assert [part.shape for part in training_gradient] == [part.shape for part in CALLS[1][1]]
    assert norm(training_gradient) > 0


def test_the_solver_remembers_what_it_returned_and_a_saved_run_goes_on() -> None:
    whole = build(Averaged(), Doubled())
    trained(whole, 2)
    resumed = build(Averaged(), Doubled())
    resumed.load_state_dict(whole.state_dict())
    resumed.policy.load_state_dict(whole.policy.state_dict())
    expected, found = trained(whole, 1), trained(resumed, 1)
    assert torch.equal(found, expected)
    counts = [call[1] and call[1][0] for call in CALLS if isinstance(call[0], Averaged)]
    assert counts == [None, 1, 2, 2]
