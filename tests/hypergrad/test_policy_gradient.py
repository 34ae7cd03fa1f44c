"""The gradient of a policy against training again with other magnitudes, on digits."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from madao.hypergrad import Neumann, Problem, hypergradient
from madao.policy import Policy
from tests.helpers.problems import newton

EXACT = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Contrast", "Brightness", "Sharpness"]


def digits(start: int, count: int) -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = torch.tensor(data.images[start : start + count], dtype=torch.float64)[:, None] / 16
    return images, torch.tensor(data.target[start : start + count])


def test_implicit_gradient_equals_central_differences_of_the_retrained_head() -> None:
    """Features fixed, the head strongly convex and trained to the end: ∂g/∂μ by perturbing μ and training again."""
    images, labels = digits(0, 40)
    validation, validation_labels = digits(100, 40)
    torch.manual_seed(0)
    features = (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AvgPool2d(3), nn.Flatten()).double().requires_grad_(False)
    )
    chosen = Policy(operations=EXACT).double()
    decay = 0.05

    def inputs() -> Tensor:
        draw = chosen.sample(images, torch.Generator().manual_seed(11), relaxed=True)
        return chosen.augment(images, draw)

    def inner(head: Tensor, x: Tensor) -> Tensor:
        return F.cross_entropy(features(x) @ head.reshape(16, 10), labels)

    def outer(head: Tensor, _: Tensor) -> Tensor:
        return F.cross_entropy(features(validation) @ head.reshape(16, 10), validation_labels)

    def trained(start: Tensor) -> Tensor:
        return newton(lambda t, x: inner(t, x) + 0.5 * decay * t.square().sum(), start, inputs().detach())

    head = trained(torch.zeros(160, dtype=torch.float64))
    result = hypergradient(
        Problem(head, tuple(chosen.parameters()), inner, outer, inputs=inputs(), weight_decay=decay),
        Neumann(steps=600, scale=0.5),
    )
    assert result.stats.residual is not None
    assert result.stats.residual < 1e-6
    gradient = result.grads[2]
    assert gradient.shape == chosen.magnitude_logits.shape

    step = 1e-6
    for index in [(0, 0), (0, 4), (0, 6), (1, 1), (1, 3), (1, 7)]:
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                chosen.magnitude_logits[index] += sign * step
            values.append(outer(trained(head), images))
            with torch.no_grad():
                chosen.magnitude_logits[index] -= sign * step
        expected = float((values[0] - values[1]).detach()) / (2 * step)
        assert float(gradient[index]) == pytest.approx(expected, rel=1e-4, abs=1e-8), index
    assert (gradient != 0).any(1).all()
