"""The average of the weights, against a slow float64 loop."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from madao.training.ema import WeightAverage


class Scalar(nn.Module):
    """One weight and one counter."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value, dtype=torch.float64))
        self.counter: Tensor
        self.register_buffer("counter", torch.tensor(0))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def train_a_little(model: nn.Module, generator: torch.Generator) -> None:
    """Other weights, and other buffers."""
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    model(torch.randn(6, 4, generator=generator))


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999])
def test_it_equals_a_slow_float64_loop(decay: float) -> None:
    model, generator = network(), torch.Generator().manual_seed(1)
    average = WeightAverage(model, decay)
    slow = {name: value.double().numpy().copy() for name, value in model.state_dict().items()}
    for step in range(30):
        train_a_little(model, generator)
        average.update(model)
        d = min(decay, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            slow[name] = d * slow[name] + (1 - d) * value.double().numpy()
        slow["1.num_batches_tracked"] = np.array(step + 1.0)
    found = average.module.state_dict()
    assert found.keys() == slow.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value.double().numpy(), slow[name], rtol=1e-5, atol=1e-6)
    assert average.steps == 30


def test_the_decay_rises_to_its_value() -> None:
    average = WeightAverage(Scalar(0.0), decay=0.25)
    seen = []
    for _ in range(6):
        before = float(average.module.state_dict()["weight"])
        average.update(Scalar(before + 1))
        seen.append(before + 1 - float(average.module.state_dict()["weight"]))
    assert seen == pytest.approx([1 / 10, 2 / 11, 3 / 12, 0.25, 0.25, 0.25])


def test_a_low_decay_is_never_exceeded() -> None:
    average = WeightAverage(Scalar(0.0), decay=0.05)
    average.update(Scalar(1.0))
    assert float(average.module.state_dict()["weight"]) == pytest.approx(0.95)


def test_counters_are_copied_and_not_averaged() -> None:
    model = Scalar(0.0)
    average = WeightAverage(model, decay=0.9)
    for count in (7, 100, 3):
        model.counter.fill_(count)
        average.update(model)
        counter = average.module.state_dict()["counter"]
        assert counter.dtype == torch.int64
        assert int(counter) == count
    model.counter.fill_(8)
    assert int(average.module.state_dict()["counter"]) == 3


def test_the_model_is_not_touched() -> None:
    model = network().train()
    before = copy.deepcopy(model.state_dict())
    average = WeightAverage(model, decay=0.9)
    with torch.no_grad():
        for value in average.module.parameters():
            value.add_(1)
    average.update(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(module.training for module in model.modules())
    assert all(value.requires_grad and value.grad is None for value in model.parameters())


def test_the_average_is_for_evaluation_only() -> None:
    model = network().train()
    average = WeightAverage(model, decay=0.9)
    average.update(model)
    assert not any(module.training for module in average.module.modules())
    assert not any(value.requires_grad for value in average.module.parameters())


def test_it_goes_on_from_a_saved_state(tmp_path: Path) -> None:
    model, generator = network(), torch.Generator().manual_seed(1)
    average = WeightAverage(model, decay=0.9)
    for _ in range(5):
        train_a_little(model, generator)
        average.update(model)
    torch.save(average.state_dict(), tmp_path / "average.pt")
    other = WeightAverage(network(), decay=0.9)
    other.load_state_dict(torch.load(tmp_path / "average.pt", weights_only=True))
    assert other.steps == 5
    for _ in range(3):
        train_a_little(model, generator)
        average.update(model)
        other.update(model)
        for name, value in average.module.state_dict().items():
            assert torch.equal(value, other.module.state_dict()[name])
    assert not any(value.requires_grad for value in other.module.parameters())
