"""Two threads get the results that each of them gets alone."""

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao import Policy, PolicyOptimizer
from madao.hypergrad import Deflated, GaussNewton, Neumann, Solver
from madao.outer import ComputeOptions

STEPS = 4
IMAGES = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (12,), generator=torch.Generator().manual_seed(1))


class Attention(nn.Module):
    """Attention, dropout and two kinds of norm: all that an outer step computes by other functions than torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm = nn.Conv2d(1, 8, 2, stride=2), nn.GroupNorm(2, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(self.norm(self.patch(images)).flatten(2).mT).mean(1))
        return result


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Dropout(0.3), nn.Flatten(), nn.Linear(216, 3))


def job(seed: int, build: Callable[[], nn.Module], solver: Solver) -> Callable[[], list[Tensor]]:
    """Build a policy, a model and an optimizer now; return the outer steps, to be run in any thread."""
    torch.manual_seed(seed)
    policy = Policy(seed=seed)
    compute = ComputeOptions(inner_mode="train")
    outer = PolicyOptimizer(policy, build(), every=1, solver=solver, seed=seed, compute=compute)

    def run() -> list[Tensor]:
        found = []
        for _ in range(STEPS):
            step = outer.update((IMAGES, LABELS), (IMAGES, LABELS))
            assert step.applied
            found += [parameter.detach().clone() for parameter in policy.parameters()]
        return found

    return run


JOBS: dict[str, tuple[Callable[[], nn.Module], Solver]] = {
    "a transformer by Neumann": (Attention, Neumann(2, 0.01)),
    "a convolutional network by Deflated": (convolutional, Deflated(3)),
    "a convolutional network by GaussNewton": (convolutional, GaussNewton(2)),
}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a transformer by Neumann", "a transformer by Neumann"),
        ("a transformer by Neumann", "a convolutional network by Deflated"),
        ("a convolutional network by GaussNewton", "a convolutional network by Deflated"),
    ],
)
def test_two_threads_get_what_each_gets_alone(first: str, second: str) -> None:
    names = (first, second)
    alone = [job(seed, *JOBS[name])() for seed, name in enumerate(names)]
    before = (F.dropout, F.batch_norm, [*warnings.filters])
    jobs = [job(seed, *JOBS[name]) for seed, name in enumerate(names)]
    random_state, together, start = torch.get_rng_state(), dict[int, list[Tensor]](), threading.Barrier(2)

    def work(index: int) -> None:
        start.wait()
        together[index] = jobs[index]()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, expected in enumerate(alone):
        assert index in together, "the thread raised an error"
        assert all(map(torch.equal, together[index], expected))
    assert (F.dropout, F.batch_norm, [*warnings.filters]) == before
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.backends.mha.get_fastpath_enabled()
