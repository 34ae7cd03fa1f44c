"""The gradient of a policy in one outer step, as a function that a CUDA graph can hold."""

import dataclasses

from torch import Tensor

from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.hypergradient import PendingHypergradient, pending_hypergradient
from madao.outer.outer_step import OuterRequest
from madao.outer.problem_builder import ProblemBuilder


@dataclasses.dataclass(frozen=True, eq=False)
class OuterGradient:
    """The hypergradient of an outer step.

    It depends on its arguments, the weights of the model, and the parameters and random state of the policy, and on
    nothing else that changes.

    Attributes:
        builder: The builder of the problem.
        hvp: How second derivatives are taken.
    """

    builder: ProblemBuilder
    hvp: SecondOrder | None = None

    def __call__(self, request: OuterRequest, tensors: tuple[Tensor, ...]) -> PendingHypergradient:
        """Return the hypergradient without waiting for the device; arguments as of `ProblemBuilder.build`."""
        builder = self.builder
        problem = builder.build(request, tensors)
        return pending_hypergradient(
            problem, builder.solver, self.hvp, builder.estimator, request.check, request.state, keep=False
        )

    def with_hvp(self, hvp: SecondOrder | None) -> "OuterGradient":
        """Return the same gradient by other second derivatives."""
        return dataclasses.replace(self, hvp=hvp)

    def on_few(self, count: int) -> "OuterGradient":
        """Return the same gradient for `count` images, of which some are only scored if a larger batch has such."""
        if self.builder.compute.pathwise_batch is None:
            return self
        pathwise = min(self.builder.compute.pathwise_batch, max(count // 2, 1))
        compute = dataclasses.replace(self.builder.compute, pathwise_batch=pathwise)
        return dataclasses.replace(self, builder=dataclasses.replace(self.builder, compute=compute))

    def for_comparison(self, count: int) -> "OuterGradient":
        """Return the gradient with which two kinds of second derivatives are compared on `count` images.

        It is in single precision.
        """
        few = self.on_few(count)
        compute = dataclasses.replace(few.builder.compute, autocast=None)
        builder = dataclasses.replace(few.builder, compute=compute, solver=few.builder.solver.for_comparison())
        return dataclasses.replace(few, builder=builder)
