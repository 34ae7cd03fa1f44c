"""Running out of memory: whether it happened, and what to do about it."""


def out_of_memory(error: BaseException) -> bool:
    """Whether torch ran out of memory, on a GPU or on the CPU."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)


def less_memory(batch_size: int, accumulate: int, outer: int | None) -> str:
    """What to do where there is not enough memory.

    Args:
        batch_size: Images of a training step.
        accumulate: Parts in which they pass.
        outer: Most images of one pass of the outer step, if that was it.
    """
    if outer is not None:
        return f"the policy's step did not fit, try --outer.microbatch {max(outer // 2, 1)}"
    parts = 2 * accumulate
    smaller = f"try --batch_size {max(batch_size // 2, 1)}"
    return smaller if batch_size % parts else f"{smaller}, or --accumulate {parts}, which keeps the batch"
