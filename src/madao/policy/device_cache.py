"""Numbers that stay on a device from call to call."""

import functools

import torch
from torch import Tensor


@functools.lru_cache(maxsize=128)
def on_device(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """The numbers as a tensor, the same one each time: a copy to a GPU makes its host wait. Not to be written to."""
    with torch.inference_mode(False):  # whoever asks first, the next may want a gradient
        return torch.tensor(numbers, device=device, dtype=dtype)
