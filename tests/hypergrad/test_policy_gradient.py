"""The real thing: digits, a small CNN, a policy."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from madao.hypergrad import (
    DoubleBackward,
    FiniteDifference,
    ForwardOverReverse,
    FunctionalModel,
    Neumann,
    Problem,
    Relaxed,
    hypergradient,
)
from madao.hypergrad.autodiff.products import SecondOrder
from madao.policy import Draw, Policy
from tests.helpers.problems import newton

EXACT = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Contrast", "Brightness", "Sharpness"]


def digits(start: int, count: int) -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = torch.tensor(data.images[start : start + count], dtype=torch.float64)[:, None] / 16
    return images, torch.tensor(data.target[start : start + count])


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(128, 10),
    ).to(dtype)


def policy(dtype: torch.dtype = torch.float64) -> Policy:
    return Policy(operations=EXACT).to(dtype)


def test_implicit_gradient_equals_central_differences_of_the_retrained_head() -> None:
    """Features fixed, the head strongly convex and trained to the end: ∂g/∂μ by perturbing μ and training again."""
    images, labels = digits(0, 40)
    validation, validation_labels = digits(100, 40)
    torch.manual_seed(0)
    features = (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AvgPool2d(3), nn.Flatten()).double().requires_grad_(False)
    )
    chosen = policy()
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


def gradients(dtype: torch.dtype, kind: SecondOrder) -> Tensor:
    images, labels = digits(0, 64)
    validation, validation_labels = digits(200, 64)
    model = network(dtype)
    chosen = policy(dtype)
    # The same draw in both precisions, carrying this one's gradient.
    double = policy().sample(images, torch.Generator().manual_seed(1))
    magnitude = chosen.magnitude.gather(1, double.choice)
    draw = Draw(double.choice, double.applied, magnitude, double.sign.to(dtype))
    pure_inner, pure_outer = FunctionalModel(model, "train"), FunctionalModel(model, "eval")
    result = hypergradient(
        Problem(
            pure_inner.params,
            (chosen.magnitude_logits,),
            lambda p, x: F.cross_entropy(pure_inner(p, x), labels),
            lambda p, _: F.cross_entropy(pure_outer(p, validation.to(dtype)), validation_labels),
            inputs=chosen.augment(images.to(dtype), draw),
        ),
        Neumann(5, 1e-2),
        kind,
        Relaxed(),
    )
    gradient: Tensor = result.grads[0]
    return gradient.double().flatten()


@pytest.mark.parametrize(
    "kind", [ForwardOverReverse(), DoubleBackward(), FiniteDifference()], ids=lambda k: type(k).__name__
)
def test_every_kind_of_product_agrees_with_float64(kind: SecondOrder) -> None:
    exact = gradients(torch.float64, ForwardOverReverse())
    assert F.cosine_similarity(gradients(torch.float32, kind), exact, dim=0) > 0.999
