"""How torch's allocator keeps the memory of a GPU."""

import os
import sys

import torch

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def enable_expandable_segments(device: torch.device) -> None:
    """Let blocks of different sizes share memory, for the whole process.

    Inner and outer steps take turns in one pool but want blocks of other sizes; in segments of a fixed size much of
    what the one leaves free is of no use to the other. What the user has set by the environment stays.
    """
    if device.type != "cuda" or sys.platform != "linux" or any(name in os.environ for name in _VARIABLES):
        return
    settings = "expandable_segments:True"
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        torch._C._accelerator_setAllocatorSettings(settings)
    else:
        torch.cuda.memory._set_allocator_settings(settings)


def empty_caches() -> None:
    """Of memory that nobody needs. cuBLAS keeps a workspace for each stream, in a graph's pool if it was made there."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
