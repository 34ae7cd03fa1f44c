"""Options for the computation of outer steps."""

import dataclasses

import torch

from madao.hypergrad.autodiff.functional_model import Mode
from madao.hypergrad.autodiff.products import SecondOrder


@dataclasses.dataclass(frozen=True)
class ComputeOptions:
    """Options of an outer step: the number of examples, the size of passes, and the kind of derivatives.

    Attributes:
        draws: Draws of the policy for each training image, for the baseline `SameExample`.
        microbatch: The largest number of examples in one pass, to save memory; None for all. Results change if the
            examples of a batch depend on each other, as under BatchNorm in training mode.
        curvature_batch: Training examples from which curvature is taken; None for all.
        pathwise_batch: Training examples whose derivative in the magnitudes is taken; None for all. The others are only
            scored, which takes less time and memory. `Relaxed` always takes all.
        autocast: The half-precision dtype of the forward passes, such as `torch.bfloat16`. None for single precision,
            or inside another library's trainer for that trainer's; `torch.float32` for single precision there too.
        inner_mode: The mode of the model in the training loss. In `"eval"` the influence of an image does not depend on
            the other images; `"train"`, the mode of inner steps, is the choice of the paper's authors.
        outer_mode: The mode of the model in the validation loss. `"eval"` is the authors' choice.
        hvp: How second derivatives are taken. By default `ForwardOverReverse()`; for a model that cannot be
            differentiated so, `DoubleBackward()`, or else `FiniteDifference()`.
        check_every: Outer steps from one measurement of the linear system's residual to the next; 0 for none. From the
            same measurement `Neumann(tolerance=…)` decides which powers of the Hessian to leave out until the next.

    Example:
        >>> ComputeOptions(microbatch=64, pathwise_batch=32).microbatch
        64
    """

    draws: int = 1
    microbatch: int | None = None
    curvature_batch: int | None = None
    pathwise_batch: int | None = None
    autocast: torch.dtype | None = None
    inner_mode: Mode = "eval"
    outer_mode: Mode = "eval"
    hvp: SecondOrder | None = None
    check_every: int = 10

    def __post_init__(self) -> None:
        check_counts(draws=self.draws)
        check_counts(0, check_every=self.check_every)
        sizes = {name: getattr(self, name) for name in ("microbatch", "curvature_batch", "pathwise_batch")}
        check_counts(**{name: size for name, size in sizes.items() if size is not None})


def check_counts(least: int = 1, **counts: object) -> None:
    """Raise unless all numbers are whole and large enough."""
    for name, value in counts.items():
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
