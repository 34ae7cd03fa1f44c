"""Signal-to-noise ratios of gradients whose signal and noise are known."""

import math

import pytest
import torch
from torch import Tensor

from madao.hypergrad.snr import RunningSignal, agreement, expected_agreement, signal_to_noise, t_values

PARAMETERS = 20


def gradients(steps: int, ratio: float, seed: int = 0) -> Tensor:
    """Noise of length one a step, and a signal of squared length `ratio`."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(steps, PARAMETERS, generator=generator, dtype=torch.float64) / math.sqrt(PARAMETERS)
    signal = torch.zeros(PARAMETERS, dtype=torch.float64)
    signal[:4] = math.sqrt(ratio) / 2
    return signal + noise


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.1, 2.0])
def test_the_ratio_is_found_without_bias(ratio: float) -> None:
    found = torch.tensor([signal_to_noise(gradients(100, ratio, seed)) for seed in range(200)])
    assert float(found.mean()) == pytest.approx(ratio, abs=4 * float(found.std()) / math.sqrt(200) + 0.01 * ratio)
    if ratio == 0:
        assert float((found < 0).double().mean()) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("ratio", [0.0, 0.02, 0.2])
def test_halves_agree_as_much_as_the_ratio_says(ratio: float) -> None:
    found = [agreement(gradients(200, ratio, seed)) for seed in range(100)]
    assert sum(found) / 100 == pytest.approx(expected_agreement(ratio, 100), abs=0.06)


def test_t_values_tell_which_parameters_move() -> None:
    found = t_values(gradients(400, 0.2))
    assert (found[:4] > 5).all()
    assert found[4:].abs().max() < 4


def test_a_gradient_that_never_changes_is_all_signal() -> None:
    same = torch.ones(10, 3)
    assert signal_to_noise(same) == math.inf
    assert agreement(same) == pytest.approx(1)
    running = RunningSignal()
    for _ in range(3):
        running.update([torch.ones(3)])
    assert running.ratios() == [math.inf]


@pytest.mark.parametrize("ratio", [0.05, 0.5])
def test_the_running_ratio_is_that_of_all_steps(ratio: float) -> None:
    running = RunningSignal(decay=0.999)
    assert running.ratios() is None
    for signal, noise in zip(gradients(4000, ratio), gradients(4000, 0.0, seed=1), strict=True):
        running.update([signal, noise])
    found = running.ratios()
    assert found is not None
    assert found[0] == pytest.approx(ratio, rel=0.3)
    assert abs(found[1]) < 0.03


def test_a_saved_running_ratio_continues() -> None:
    first, second = RunningSignal(0.9), RunningSignal(0.9)
    for row in gradients(20, 0.3):
        first.update([row])
        if first.ratios() is not None:
            second.load_state_dict(first.state_dict())
        second.update([row + 1]) if second.ratios() is None else None
    first.update([torch.ones(PARAMETERS)])
    second.update([torch.ones(PARAMETERS)])
    assert first.ratios() == second.ratios()


def test_the_running_ratio_copies_its_gradients() -> None:
    running, values = RunningSignal(), torch.ones(3)
    running.update([values])
    values.zero_()
    running.update([torch.ones(3)])
    assert running.ratios() == [math.inf]


def test_bad_shapes_and_decays_raise() -> None:
    with pytest.raises(ValueError, match="4 steps"):
        agreement(gradients(3, 0.0))
    with pytest.raises(ValueError, match="decay"):
        RunningSignal(1)
