"""Outer steps as CUDA graphs of traced code."""

from collections.abc import Callable

from torch import Tensor

from madao.hypergrad import Traced
from madao.hypergrad.hypergradient import PendingHypergradient
from madao.outer.cuda_graph import CudaGraphRunner, GraphPool
from madao.outer.gradient_check import check_traced
from madao.outer.outer_gradient import OuterGradient
from madao.outer.outer_step import OuterRequest


class TracedGradient:
    """The hypergradient of an outer step by traced code, compared with the reference at the first call.

    Args:
        reference: The hypergradient without tracing.
        compile: Whether the traced code is compiled.
        compare: Whether to compare them.
    """

    def __init__(self, reference: OuterGradient, compile: bool, compare: bool) -> None:
        self.reference, self.traced, self.unchecked = reference, reference.with_hvp(Traced(compile)), compare

    def __call__(self, request: OuterRequest, tensors: tuple[Tensor, ...]) -> PendingHypergradient:
        """Return the hypergradient."""
        if self.unchecked:
            check_traced(self.reference, request, tensors)
            self.unchecked = False
        return self.traced(request, tensors)


def recorded_gradient(
    reference: OuterGradient,
    say: Callable[[str], None],
    compile: bool = False,
    memory: GraphPool | None = None,
    compare: bool = True,
) -> CudaGraphRunner[PendingHypergradient] | None:
    """Return the hypergradient as CUDA graphs; arguments as of `PolicyOptimizer.record`.

    Returns:
        None if graphs cannot help: with several processes, and with microbatches if the solver multiplies by a Hessian
        repeatedly. A graph would hold the memory of all microbatches at the same time.
    """
    builder = reference.builder
    if builder.ranks.world > 1 or (builder.compute.microbatch is not None and not builder.solver.capturable):
        return None
    traced = TracedGradient(reference, compile, compare)
    return CudaGraphRunner(traced, "outer steps", [builder.policy], say, memory, otherwise=reference, before=1)
