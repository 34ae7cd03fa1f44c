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

    def for_comparison(self, count: int) -> "OuterGradient":
        """Return the gradient with which two kinds of second derivatives are compared, on `count` images.

        It is in single precision. Some of the images are only scored, if a larger batch would have such images.
        """
        compute = dataclasses.replace(self.builder.compute, autocast=None)
        if compute.pathwise_batch is not None:
            compute = dataclasses.replace(compute, pathwise_batch=min(compute.pathwise_batch, max(count // 2, 1)))
        builder = dataclasses.replace(self.builder, compute=compute, solver=self.builder.solver.for_comparison())
        return dataclasses.replace(self, builder=builder)
