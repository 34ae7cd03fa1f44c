"""Small problems in float64 with a known hypergradient, in closed form or by differences of solved problems."""

import dataclasses
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.hypergrad import Problem

DOUBLE = torch.float64


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """A problem at its inner solution, with its exact hypergradient and the Hessian there."""

    problem: Problem
    exact: Tensor
    hessian: Tensor

    @property
    def largest(self) -> float:
        return float(torch.linalg.eigvalsh(self.hessian)[-1])

    @property
    def smallest(self) -> float:
        return float(torch.linalg.eigvalsh(self.hessian)[0])


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def source(seed: int) -> Callable[..., Tensor]:
    """Return a function that draws a tensor of any shape, each time another."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=DOUBLE)


def parts(flat: Tensor) -> tuple[Tensor, ...]:
    """Return a vector as two parameters."""
    return flat[:6].reshape(2, 3), flat[6:]


def joined(parts: Iterable[Tensor]) -> Tensor:
    """Return parameters as one vector."""
    return torch.cat([part.flatten() for part in parts])


def newton(inner: Callable[[Tensor, Tensor], Tensor], start: Tensor, phi: Tensor) -> Tensor:
    """The minimum of a convex inner problem (or a nearby one), to machine precision."""
    theta = start
    for _ in range(100):
        gradient = torch.func.grad(inner)(theta, phi)
        hessian = torch.func.hessian(inner)(theta, phi)
        step = torch.linalg.solve(hessian, gradient)
        scale = 1.0
        while inner(theta - scale * step, phi) > inner(theta, phi) + 1e-12 and scale > 1e-6:
            scale /= 2
        theta = theta - scale * step
        if step.norm() < 1e-13:
            break
    return theta


def known(
    inner: Callable[[Tensor, Tensor], Tensor],
    outer: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    phi: Tensor,
    exact: Tensor | None = None,
) -> Known:
    theta = newton(inner, start, phi)
    if exact is None:  # central differences of the solved problem
        step = 1e-5
        rows = []
        for unit in torch.eye(len(phi), dtype=DOUBLE):
            up, down = phi + step * unit, phi - step * unit
            g_up, g_down = outer(newton(inner, theta, up), up), outer(newton(inner, theta, down), down)
            rows.append((g_up - g_down) / (2 * step))
        exact = torch.stack(rows)
    hessian = torch.func.hessian(inner)(theta, phi)
    return Known(Problem(theta, phi, inner, outer), exact, hessian)


def quadratic() -> Known:
    """F = ½ θᵀAθ − θᵀBφ, g = ‖θ − c‖² + ‖φ‖²: ∂g/∂φ = 2 Bᵀ A⁻¹ (θ* − c) + 2 φ."""
    root, b, c, phi = random(6, 6, seed=0), random(6, 3, seed=1), random(6, seed=2), random(3, seed=3)
    a = root @ root.T / 6 + 0.5 * torch.eye(6, dtype=DOUBLE)
    theta = torch.linalg.solve(a, b @ phi)
    return known(
        lambda t, p: 0.5 * t @ a @ t - t @ (b @ p),
        lambda t, p: (t - c).square().sum() + p.square().sum(),
        theta,
        phi,
        2 * b.T @ torch.linalg.solve(a, theta - c) + 2 * phi,
    )


def ridge() -> Known:
    """Ridge regression. φ is the logarithm of the regularisation weight; the normal equations give the gradient."""
    x, y, x_val, y_val = random(20, 5, seed=4), random(20, seed=5), random(15, 5, seed=6), random(15, seed=7)
    phi = torch.tensor([-0.3], dtype=DOUBLE)

    def solution(p: Tensor) -> Tensor:
        weights: Tensor = torch.linalg.solve(x.T @ x / 20 + p.exp() * torch.eye(5, dtype=DOUBLE), x.T @ y / 20)
        return weights

    def outer(t: Tensor, _: Tensor) -> Tensor:
        return (x_val @ t - y_val).square().mean()

    exact = torch.func.grad(lambda p: outer(solution(p), p))(phi)
    return known(
        lambda t, p: 0.5 * (x @ t - y).square().mean() + 0.5 * p.exp().sum() * t.square().sum(),
        outer,
        solution(phi),
        phi,
        exact,
    )


def weighted_logistic() -> Known:
    """Logistic regression. φ holds the weights of the training examples."""
    x, x_val = random(12, 4, seed=8), random(10, 4, seed=9)
    y, y_val = (x[:, 0] + 0.5 * random(12, seed=10) > 0).to(DOUBLE), (x_val[:, 0] > 0).to(DOUBLE)

    def inner(t: Tensor, p: Tensor) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(x @ t, y, reduction="none")
        return (p.sigmoid() * losses).mean() + 0.05 * t.square().sum()

    return known(
        inner,
        lambda t, _: F.binary_cross_entropy_with_logits(x_val @ t, y_val),
        torch.zeros(4, dtype=DOUBLE),
        random(12, seed=11),
    )


def tanh_network() -> Known:
    """A network of two layers. φ shifts its targets and sets its weight decay."""
    x, x_val = random(30, 2, seed=12), random(20, 2, seed=13)
    target, target_val = x.prod(1).tanh(), x_val.prod(1).tanh()

    def predict(t: Tensor, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(inputs @ t[:6].reshape(2, 3) + t[6:9])
        return hidden @ t[9:12] + t[12]

    def inner(t: Tensor, p: Tensor) -> Tensor:
        shifted = target + p[0] * x[:, 0] + p[1]
        return 0.5 * (predict(t, x) - shifted).square().mean() + 0.5 * p[2].exp() * t.square().sum()

    phi = torch.tensor([0.2, -0.1, -1.0], dtype=DOUBLE)
    start = 0.5 * random(13, seed=14)
    for _ in range(1500):  # into the basin of a minimum, for Newton's method
        start = start - 0.3 * torch.func.grad(inner)(start, phi)
    return known(inner, lambda t, _: (predict(t, x_val) - target_val).square().mean(), start, phi)


PROBLEMS: dict[str, Callable[[], Known]] = {
    "quadratic": quadratic,
    "ridge": ridge,
    "weighted logistic": weighted_logistic,
    "tanh network": tanh_network,
}
