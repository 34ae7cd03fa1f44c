"""The probabilities and magnitudes from which a batch is drawn, and constants that stay on their device."""

import dataclasses
import functools

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class PolicyTables:
    """Tables `[K, R, n]` of a policy: each image reads one of the R rows."""

    selection: Tensor  # logits
    application: Tensor  # logits, or probabilities
    magnitude: Tensor  # μ in [0, 1]
    rows: Tensor | None = None  # the row of each image, int64 [B]; None if there is one for all

    def of_images(self, count: int) -> tuple[Tensor, ...]:
        """Return selection, application and magnitude of `count` images, `[K, B, n]` each."""
        tables = self.selection, self.application, self.magnitude
        return tuple(self.of_each(table).expand(-1, count, -1) for table in tables)

    def of_each(self, table: Tensor) -> Tensor:
        """Return each image's row of a table, `[K, B, n]`; `[K, 1, n]` if there is one row for all."""
        return table if self.rows is None else table.index_select(1, self.rows)

    def chosen(self, table: Tensor, choice: Tensor) -> Tensor:
        """Return the entry of each image's drawn operation: `choice`, `[K, B]` → `[K, B]`."""
        place = choice if self.rows is None else choice + table.shape[2] * self.rows
        return table.flatten(1).gather(1, place)


@functools.lru_cache(maxsize=128)
def on_device(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a cached tensor of constants. Do not write to it.

    The cache avoids a copy to the GPU at every call, which would make the host wait.
    """
    with torch.inference_mode(False):  # a later caller may need gradients through it
        return torch.tensor(numbers, device=device, dtype=dtype)
