"""Loss and error of an epoch so far, against numpy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from madao.training.monitor.metrics import EpochMetrics

CPU = torch.device("cpu")
BAD = [float("nan"), float("inf"), float("-inf")]
Batch = tuple[Tensor, Tensor, Tensor]


def batches(sizes: list[int]) -> list[Batch]:
    """Mean losses, outputs and labels."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.rand((), generator=generator),
            torch.randn(size, 4, generator=generator),
            torch.randint(0, 4, (size,), generator=generator),
        )
        for size in sizes
    ]


def add(totals: EpochMetrics, batch: Batch, step: int) -> None:
    loss, outputs, labels = batch
    totals.add(loss, (outputs.argmax(1) != labels).sum(), len(labels), step)


def after(taken: list[Batch]) -> EpochMetrics:
    totals = EpochMetrics(CPU)
    for step, batch in enumerate(taken, 1):
        add(totals, batch, step)
    return totals


def add_losses(totals: EpochMetrics, losses: list[float], first: int = 1) -> None:
    for step, loss in enumerate(losses, first):
        totals.add(torch.tensor(loss), torch.tensor(0), 2, step)


def test_means_are_those_of_numpy_over_images_not_batches() -> None:
    taken = batches([5, 8, 1, 30])
    totals = after(taken)
    losses = np.concatenate([np.full(len(labels), loss.double().item()) for loss, _, labels in taken])
    num_errors = np.concatenate([outputs.numpy().argmax(1) != labels.numpy() for _, outputs, labels in taken])
    assert totals.loss == pytest.approx(losses.mean(), rel=1e-12)
    assert totals.error == pytest.approx(num_errors.mean(), rel=1e-12)
    assert 0 < totals.error < 1
    assert totals.images == 44
    assert totals.first_bad_step() is None


def test_nothing_yet_is_zero() -> None:
    totals = EpochMetrics(CPU)
    assert (totals.loss, totals.error, totals.images) == (0, 0, 0)
    assert totals.first_bad_step() is None


def test_small_losses_are_not_lost_beside_large_ones() -> None:
    totals = EpochMetrics(CPU)
    add_losses(totals, [2.0**30, 1.0])
    assert totals.loss == (2**30 + 1) / 2


def test_half_precision_losses_are_taken() -> None:
    totals = EpochMetrics(CPU)
    totals.add(torch.tensor(0.5).bfloat16(), torch.tensor(1), 2, 1)
    assert (totals.loss, totals.error) == (0.5, 0.5)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("first", [1, 3, 6])
def test_a_bad_step_is_named(bad: float, first: int) -> None:
    totals = EpochMetrics(CPU)
    add_losses(totals, [bad if step == first else 0.1 for step in range(1, 7)])
    assert totals.first_bad_step() == first


@pytest.mark.parametrize("order", [BAD, BAD[::-1], BAD[1:] + BAD[:1]])
def test_the_first_of_several_bad_steps_is_named(order: list[float]) -> None:
    totals = EpochMetrics(CPU)
    add_losses(totals, [0.1, 0.2], first=40)
    assert totals.first_bad_step() is None
    add_losses(totals, [order[0], 0.3, *order[1:], 0.1], first=42)
    assert totals.first_bad_step() == 42


def test_cleared_they_begin_anew() -> None:
    taken = batches([5, 8])
    totals = after(taken)
    totals.clear()
    assert (totals.loss, totals.error, totals.images) == (0, 0, 0)
    add(totals, taken[1], 3)
    loss, outputs, labels = taken[1]
    assert totals.loss == pytest.approx(loss.item(), rel=1e-12)
    assert totals.error == float(np.mean(outputs.numpy().argmax(1) != labels.numpy()))
    assert totals.images == 8


def test_they_go_on_from_a_saved_state(tmp_path: Path) -> None:
    taken = batches([5, 8, 3])
    whole, half = after(taken), after(taken[:2])
    torch.save(half.state_dict(), tmp_path / "totals.pt")
    other = EpochMetrics(CPU)
    other.load_state_dict(torch.load(tmp_path / "totals.pt", weights_only=True))
    assert (other.loss, other.error, other.images) == (half.loss, half.error, 13)
    add(other, taken[2], 3)
    assert (other.loss, other.error, other.images) == (whole.loss, whole.error, 16)
