"""Steps that are shrunk by how much of them may be noise, against the formula written out and against Adam."""

import math

import pytest
import torch
from torch import Tensor, nn

from madao.training.shrunk import Shrunk


def by_hand(gradients: list[float], lr: float, slow: float, slower: float, caution: float) -> float:
    """Where one coordinate ends that starts at 0, from the definitions: weighted means over all steps so far."""
    place = 0.0
    for count in range(1, len(gradients) + 1):
        ages = [count - 1 - index for index in range(count)]
        weights = [slow**age for age in ages]
        weights = [weight / sum(weights) for weight in weights]
        slowly = [slower**age for age in ages]
        mean = sum(w * g for w, g in zip(weights, gradients, strict=False))
        square = sum(w * g * g for w, g in zip(slowly, gradients, strict=False)) / sum(slowly)
        noise = square * sum(w * w for w in weights)
        if mean:
            place -= lr * mean / math.sqrt(square) * max(0.0, 1 - caution**2 * noise / mean**2)
    return place


@pytest.mark.parametrize("caution", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.0, 0.9), (0.95, 0.5)])
def test_it_is_the_formula(betas: tuple[float, float], caution: float) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(30, 2, 5, generator=generator, dtype=torch.float64) + torch.linspace(-2, 2, 5)
    parameter = nn.Parameter(torch.zeros(2, 5, dtype=torch.float64))
    optimizer = Shrunk([parameter], 0.1, betas, caution)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    expected = [[by_hand(gradients[:, i, j].tolist(), 0.1, *betas, caution) for j in range(5)] for i in range(2)]
    torch.testing.assert_close(parameter.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    assert (parameter != 0).any() or betas[0] == 0  # of one gradient alone nobody knows how much is noise


def walked(gradients: Tensor, shrunk: bool, lr: float = 0.1, caution: float = 1.0) -> Tensor:
    parameter = nn.Parameter(torch.zeros(gradients.shape[1:]))
    optimizer: torch.optim.Optimizer
    optimizer = Shrunk([parameter], lr, caution=caution) if shrunk else torch.optim.Adam([parameter], lr, (0.0, 0.99))
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize(("caution", "part"), [(1.0, 0.58), (2.0, 0.11)])
def test_noise_moves_it_less_and_signal_does_not(caution: float, part: float) -> None:
    noise = torch.randn(200, 4000, generator=torch.Generator().manual_seed(1))
    still, walking = (walked(noise, shrunk, caution=caution).square().mean().sqrt() for shrunk in (True, False))
    assert walking > 1.2  # lr √T
    assert still / walking == pytest.approx(part, rel=0.15)
    found, adam = (walked(noise + 1, shrunk, caution=caution).mean() for shrunk in (True, False))
    assert 0.65 < found / adam < 1.05
    # Nothing but signal: from the second step on nearly Adam's.
    constant = torch.ones(100, 3)
    torch.testing.assert_close(walked(constant, True), walked(constant, False), rtol=0.1, atol=0)


def test_the_scale_of_the_gradient_makes_no_difference_and_zero_is_zero() -> None:
    noise = torch.randn(40, 50, generator=torch.Generator().manual_seed(2)) + 0.5
    for scale in (1e-12, 1e6):
        torch.testing.assert_close(walked(scale * noise, True), walked(noise, True), rtol=1e-3, atol=1e-6)
    assert (walked(torch.zeros(5, 3), True) == 0).all()


def test_it_goes_on_from_a_state() -> None:
    gradients = torch.randn(20, 6, generator=torch.Generator().manual_seed(3)) + 1
    whole = walked(gradients, True)
    first, second = (nn.Parameter(torch.zeros(6)) for _ in range(2))
    one, other = Shrunk([first], 0.1), Shrunk([second], 0.1)
    for number, gradient in enumerate(gradients):
        parameter, optimizer = (first, one) if number < 8 else (second, other)
        if number == 8:
            other.load_state_dict(one.state_dict())
            second.data.copy_(first.data)
        parameter.grad = gradient.clone()
        optimizer.step()
    assert torch.equal(second.detach(), whole)


def test_what_will_not_do() -> None:
    parameter = [nn.Parameter(torch.zeros(1))]
    with pytest.raises(ValueError, match="lr must be at least 0, got -1"):
        Shrunk(parameter, -1)
    with pytest.raises(ValueError, match="caution must be at least 0, got -1"):
        Shrunk(parameter, caution=-1)
    with pytest.raises(ValueError, match=r"betas\[0\] must lie in \[0, 1\), got 1"):
        Shrunk(parameter, 0.1, (1, 0.9))
