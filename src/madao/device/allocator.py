"""Settings of torch's allocator of GPU memory."""

import os
import sys

import torch

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def enable_expandable_segments(device: torch.device) -> None:
    """Let blocks of different sizes share memory, for the whole process, unless the environment says otherwise.

    Inner and outer steps alternate in one pool. In segments of a fixed size, neither could use most of the memory that
    the other has freed.
    """
    if device.type != "cuda" or sys.platform != "linux" or any(name in os.environ for name in _VARIABLES):
        return
    settings = "expandable_segments:True"
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        torch._C._accelerator_setAllocatorSettings(settings)
    else:
        torch.cuda.memory._set_allocator_settings(settings)


def empty_caches() -> None:
    """Free unused memory, with the workspace of cuBLAS for each stream, which may lie in the pool of a graph."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
