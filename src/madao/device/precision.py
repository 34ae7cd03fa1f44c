"""The precision of a run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_precision(name: str, device: torch.device | None = None) -> torch.dtype | None:
    """Allow or forbid TF32 for the whole process, and return the dtype of autocast, if any.

    By default, torch allows TF32 in convolutions. Names are 32, tf32, bf16, and auto: bf16 on a GPU that has it, else
    32.
    """
    if name == "auto":
        name = "bf16" if device is not None and device.type == "cuda" and _has_bf16(device) else "32"
    fast = name != "32"
    torch.backends.cuda.matmul.allow_tf32 = fast
    torch.backends.cudnn.allow_tf32 = fast
    return torch.bfloat16 if name == "bf16" else None


def _has_bf16(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


@contextmanager
def full_precision() -> Iterator[None]:
    """Forbid TF32 inside the context."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    set_precision("32")
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
