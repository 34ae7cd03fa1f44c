"""Second derivatives as products with vectors.

Each subclass of `SecondOrder` computes two kinds of derivative. *Products* are H v, with H the Hessian of a loss or its
Gauss-Newton matrix; the latter always needs forward mode through the network. *Directional derivatives* are
D_q ℓ = ⟨q, ∇θ ℓ⟩, the change of a loss along a direction q in the parameters, and their gradient in the inputs of the
loss. This gradient is the mixed second derivative, the last step of every hypergradient. It is computed for inputs
that have `requires_grad`, and None for the others, such as labels.

Losses are pure functions of their parameters, so nothing has to be restored afterwards.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from madao.hypergrad import pytree
from madao.hypergrad.autodiff.functional_model import without_autocast
from madao.hypergrad.autodiff.torch_compat import (
    PROCESS_LOCK,
    grad_without_graph,
    load_forward_mode,
    tree_flatten,
    tree_unflatten,
)
from madao.hypergrad.problem import SplitLoss, as_leaves, detached, mean
from madao.hypergrad.pytree import Operator, OptionalVector, Vector

PureLoss = Callable[[Vector, Vector], Tensor]
"""loss(params, inputs), both flat; a scalar or `[B]`."""

_STEPS = {torch.float32: 1e-5, torch.float64: 1e-6}


class SecondOrder(abc.ABC):
    """A method to compute second derivatives."""

    @abc.abstractmethod
    def products(self, loss: PureLoss, params: Vector, inputs: Vector) -> Operator:
        """Return the function v ↦ H v, with H the Hessian of the mean loss in the parameters."""

    @abc.abstractmethod
    def directional(
        self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector
    ) -> tuple[Tensor, OptionalVector]:
        """Return D_q ℓ in the shape of ℓ, and the gradient of its mean in the inputs."""

    def gauss_newton(self, loss: SplitLoss, params: Vector, inputs: Vector) -> Operator:
        """Return v ↦ Jᵀ S J v: J is the Jacobian of the outputs, S the Hessian of the mean loss in the outputs."""
        point, fixed = detached(params), detached(inputs)

        def product(direction: Vector) -> Vector:
            with torch.no_grad():
                return gauss_newton_product(loss, point, detached(direction), fixed)

        return product

    @abc.abstractmethod
    def slopes(self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector) -> tuple[Tensor, Tensor]:
        """Return ℓ and D_q ℓ, both in the shape of ℓ, without a gradient."""

    def losses(self, loss: PureLoss, params: Vector, inputs: Vector) -> tuple[Tensor, OptionalVector]:
        """Return ℓ and the gradient of its mean in the inputs."""
        leaves = as_leaves(inputs)
        with torch.enable_grad():
            value = loss(detached(params), leaves)
            return value.detach(), scatter_grads(_gradient(mean(value), wanted(leaves)), leaves)

    def gradient(self, loss: PureLoss, params: Vector, inputs: Vector) -> tuple[Tensor, OptionalVector]:
        """Return the mean loss and its gradient in parameters and inputs, None where it does not depend on them."""
        point = (*detached(params, requires_grad=True), *as_leaves(inputs))
        with torch.enable_grad():
            value = mean(loss(point[: len(params)], point[len(params) :]))
            if not value.requires_grad:
                return value, (None,) * len(point)
            found = torch.autograd.grad(value, wanted(point), allow_unused=True)
            return value.detach(), scatter_grads(found, point)


@dataclasses.dataclass(frozen=True)
class ForwardOverReverse(SecondOrder):
    """Exact second derivatives by forward mode over reverse mode. The default.

    It stores no graph between products, and no graph over the parameters. Reverse over forward mode would be correct in
    theory for the mixed term. But torch (at least 2.15) drops terms there: the backward pass of the forward-mode
    formulas of BatchNorm and LayerNorm treats mean and variance as constants.
    """

    def products(self, loss: PureLoss, params: Vector, inputs: Vector) -> Operator:
        """Return v ↦ H v, the derivative of ∇θ f along v."""
        fixed = detached(inputs)

        def product(direction: Vector, keep_graph: bool = False) -> Vector:
            gradient = _grad(lambda p: mean(loss(p, fixed)), keep_graph)
            with _moving(detached(params), direction) as point:
                return _tangents(gradient(point))

        return _with_fallback(product)

    def directional(
        self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector
    ) -> tuple[Tensor, OptionalVector]:
        """Return D_q ℓ, and the derivative of ∇inputs f along q from the same pass."""
        fixed, moved = detached(inputs), detached(wanted(inputs))

        def value_and_gradient(direction: Vector, keep_graph: bool = False) -> Vector:
            with _moving(detached(params), direction) as point:

                def mean_and_value(x: Vector) -> tuple[Tensor, Tensor]:
                    placed = zip(fixed, scatter_grads(x, inputs), strict=True)
                    value = loss(point, tuple(still if moving is None else moving for still, moving in placed))
                    return mean(value), value

                gradient, value = _grad(mean_and_value, keep_graph, has_aux=True)(moved)
                return _tangents((value, *gradient))

        slope, *gradient = _with_fallback(value_and_gradient)(direction)
        return slope, scatter_grads(gradient, inputs)

    def slopes(self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector) -> tuple[Tensor, Tensor]:
        """Return ℓ and its tangent from one forward pass."""
        with _moving(detached(params), direction) as point:
            value = loss(point, detached(inputs))
            return forward_ad.unpack_dual(value).primal, _tangents((value,))[0]


@dataclasses.dataclass(frozen=True)
class DoubleBackward(SecondOrder):
    """Exact second derivatives by reverse mode twice, for losses without a forward-mode derivative.

    The graph of the gradient is built once and used for all products. It takes several times the memory of a training
    step.
    """

    def products(self, loss: PureLoss, params: Vector, inputs: Vector) -> Operator:
        """Return v ↦ H v, the gradient of ⟨∇θ f, v⟩."""
        point = detached(params, requires_grad=True)
        with torch.enable_grad():
            gradient = _gradient(mean(loss(point, detached(inputs))), point, create_graph=True)

        def product(direction: Vector) -> Vector:
            return _gradient(gradient, point, detached(direction), retain_graph=True)

        return product

    def directional(
        self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector
    ) -> tuple[Tensor, OptionalVector]:
        """Return D_q ℓ, the derivative in u of ⟨Jᵀu, q⟩. J is the Jacobian of ℓ; at u = 1 this is the sum of D_q ℓ."""
        value, slope, gradient = self._pulled(loss, params, direction, as_leaves(inputs))
        return slope, scatter_grads(pytree.scaled(gradient, 1 / value.numel()), inputs)

    def slopes(self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector) -> tuple[Tensor, Tensor]:
        """Return ℓ and D_q ℓ as `directional` computes it."""
        value, slope, _ = self._pulled(loss, params, direction, detached(inputs))
        return value, slope

    def _pulled(
        self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector
    ) -> tuple[Tensor, Tensor, Vector]:
        """Return ℓ, D_q ℓ, and the gradient of its sum in the inputs with `requires_grad`."""
        point = detached(params, requires_grad=True)
        with torch.enable_grad():
            value = loss(point, inputs)
            cotangent = torch.ones_like(value).requires_grad_()
            pulled = _gradient(value, point, (cotangent,), create_graph=True)
            along = pytree.dot(pulled, detached(direction))
            slope, *gradient = _gradient(along, (cotangent, *wanted(inputs)))
        return value.detach(), slope, tuple(gradient)

    def gauss_newton(self, loss: SplitLoss, params: Vector, inputs: Vector) -> Operator:
        """Return v ↦ Jᵀ S J v, with J v as the derivative in u of ⟨Jᵀ u, v⟩."""
        point, fixed = detached(params, requires_grad=True), detached(inputs)
        with torch.enable_grad():
            found, form = tree_flatten(loss.outputs(point, fixed))
            outputs = tuple(found)
            cotangents = tuple(torch.zeros_like(output, requires_grad=True) for output in outputs)
            pulled = _gradient(outputs, point, cotangents, create_graph=True)
            here = detached(outputs, requires_grad=True)
            slope = _gradient(mean(loss.of_outputs(tree_unflatten(here, form), fixed)), here, create_graph=True)

        def product(direction: Vector) -> Vector:
            moved = _gradient(pulled, cotangents, detached(direction), retain_graph=True)
            curved = _gradient(slope, here, moved, retain_graph=True)
            return _gradient(outputs, point, curved, retain_graph=True)

        return product


@dataclasses.dataclass(frozen=True)
class FiniteDifference(SecondOrder):
    """Second derivatives by central differences of first derivatives, for any loss.

    A product costs two gradients and has an error of O(step²). In half precision the difference would be noise, so a
    `FunctionalModel` computes without autocast.

    Attributes:
        step: The length of the step relative to the parameters: ε = step · ‖θ‖ / ‖v‖, with ‖θ‖ at least 1e-3. None for
            1e-5 in float32 and 1e-6 in float64. Longer steps suffer less from rounding, shorter ones from the kinks of
            a ReLU.
    """

    step: float | None = None

    def __post_init__(self) -> None:
        if self.step is not None and not self.step > 0:
            raise ValueError(f"step must be above 0, got {self.step!r}")

    def products(self, loss: PureLoss, params: Vector, inputs: Vector) -> Operator:
        """Return v ↦ [∇f(θ + εv) − ∇f(θ − εv)] / 2ε."""
        point, fixed = detached(params), detached(inputs)

        def gradient(at: Vector) -> Vector:
            leaves = detached(at, requires_grad=True)
            with torch.enable_grad(), without_autocast():
                return _gradient(mean(loss(leaves, fixed)), leaves)

        def product(direction: Vector) -> Vector:
            return self._central(gradient, point, direction)

        return product

    def directional(
        self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector
    ) -> tuple[Tensor, OptionalVector]:
        """Return D_q ℓ and its gradient from the same two evaluations."""

        def value_and_gradient(at: Vector) -> Vector:
            leaves = as_leaves(inputs)
            with torch.enable_grad(), without_autocast():
                value = loss(at, leaves)
                return (value.detach(), *_gradient(mean(value), wanted(leaves)))

        slope, *gradient = self._central(value_and_gradient, detached(params), direction)
        return slope, scatter_grads(gradient, inputs)

    def slopes(self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector) -> tuple[Tensor, Tensor]:
        """Return ℓ, and D_q ℓ from two more evaluations."""
        point, fixed = detached(params), detached(inputs)
        with torch.no_grad(), without_autocast():
            (slope,) = self._central(lambda at: (loss(at, fixed),), point, direction)
            return loss(point, fixed), slope

    def _central(self, function: Operator, point: Vector, direction: Vector) -> Vector:
        length = float(pytree.norm(direction))
        if length == 0:
            return pytree.zeros_like(function(point))
        dtype = point[0].dtype
        if self.step is None and dtype not in _STEPS:
            raise ValueError(
                f"finite differences need float32 or float64 parameters, got {dtype}; use ForwardOverReverse"
            )
        step = _STEPS[dtype] if self.step is None else self.step
        epsilon = step * max(float(pytree.norm(point)), 1e-3) / length
        ahead = function(pytree.add(point, direction, epsilon))
        behind = function(pytree.add(point, direction, -epsilon))
        return pytree.scaled(pytree.add(ahead, behind, -1.0), 1 / (2 * epsilon))


def wanted(tensors: Vector) -> Vector:
    """Return the tensors with `requires_grad`."""
    return tuple(tensor for tensor in tensors if tensor.requires_grad)


def scatter_grads(gradient: Sequence[Tensor | None], tensors: Vector) -> OptionalVector:
    """Return one gradient for each tensor: the given ones for tensors with `requires_grad`, None for the others."""
    found = iter(gradient)
    return tuple(next(found) if tensor.requires_grad else None for tensor in tensors)


def gauss_newton_product(loss: SplitLoss, params: Vector, direction: Vector, inputs: Vector) -> Vector:
    """Return Jᵀ S J v: forward mode through the network, a product with S, and reverse mode back."""

    def outputs(*point: Tensor) -> Tensor:
        return loss.outputs(point, inputs)

    slope = torch.func.grad(lambda found: mean(loss.of_outputs(found, inputs)))
    load_forward_mode()
    with PROCESS_LOCK:
        here, moved = torch.func.jvp(outputs, params, direction)[:2]
        curved = torch.func.jvp(slope, (here,), (moved,))[1]
    result: Vector = torch.func.vjp(outputs, *params)[1](curved)
    return result


def _with_fallback(function: Callable[[Vector, bool], Vector]) -> Operator:
    """Return a function that calls `function(direction, keep_graph)` without a graph of the gradient if it can.

    Some fused backward passes, such as GroupNorm's, have no forward-mode derivative. If a graph is kept, torch uses a
    composite backward pass in their place, which takes more memory.
    """
    keep_graph = False

    def run(direction: Vector) -> Vector:
        nonlocal keep_graph
        try:
            return function(direction, keep_graph)
        except NotImplementedError:
            if keep_graph:
                raise
            keep_graph = True
            return function(direction, keep_graph)

    return run


@contextlib.contextmanager
def _moving(params: Vector, direction: Vector) -> Iterator[Vector]:
    """Yield the parameters as dual numbers, whose tangents are the direction.

    Use `torch.func.grad` for gradients inside. `torch.autograd.grad` would record a graph of the tangents beside the
    graph of the values, and take twice the memory.
    """
    load_forward_mode()
    with PROCESS_LOCK, forward_ad.dual_level(), torch.no_grad():
        yield tuple(forward_ad.make_dual(p, d.detach()) for p, d in zip(params, direction, strict=True))


def _grad(function: Callable[[Vector], Any], keep_graph: bool, has_aux: bool = False) -> Callable[[Vector], Any]:
    """Return the gradient of a function. Its own graph, half of the memory, is kept only on demand."""
    return torch.func.grad(function, has_aux=has_aux) if keep_graph else grad_without_graph(function, has_aux)


def _tangents(duals: Vector) -> Vector:
    """Return the tangents of dual numbers; zeros for numbers without one."""
    unpacked = (forward_ad.unpack_dual(dual) for dual in duals)
    return tuple(torch.zeros_like(u.primal) if u.tangent is None else u.tangent.detach().clone() for u in unpacked)


def _gradient(
    outputs: Tensor | Vector,
    leaves: Vector,
    cotangents: Vector | None = None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> Vector:
    """Return the gradient by reverse mode; zeros where an output does not depend on a leaf."""
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    kept = [i for i, output in enumerate(outputs) if output.requires_grad]
    if not kept or not leaves:
        return pytree.zeros_like(leaves)
    return torch.autograd.grad(
        [outputs[i] for i in kept],
        leaves,
        None if cotangents is None else [cotangents[i] for i in kept],
        create_graph=create_graph,
        retain_graph=retain_graph,
        materialize_grads=True,
    )
