"""In which precision a run computes."""

import torch


def set_precision(name: str) -> torch.dtype | None:
    """Allow TF32 or not, for the whole process, and tell the dtype of autocast, if any.

    Convolutions of torch multiply in TF32 unless told otherwise.

    Args:
        name: 32, tf32 or bf16.
    """
    fast = name != "32"
    torch.backends.cuda.matmul.allow_tf32 = fast
    torch.backends.cudnn.allow_tf32 = fast
    return torch.bfloat16 if name == "bf16" else None
