"""A mistake the user can mend."""


class UserError(Exception):
    """Shown as one line, without a traceback; the exit code is 2."""


class SharedError(UserError):
    """One that every process of a training raises, so that the first one alone need say it."""


def out_of_memory(error: BaseException) -> bool:
    """Whether torch ran out of memory, on a GPU or on the CPU."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)
