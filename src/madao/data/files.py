"""Images in files, decoded when asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
import torch
from torch import Tensor

from madao.data.errors import DataError
from madao.data.images import Pixels, check_labels
from madao.data.loading import load_batches

if TYPE_CHECKING:
    from PIL import Image

OnError = Literal["stop", "skip"]


class Files:
    """Images in files, as RGB squares: scaled to the shorter side, then cut to the middle.

    Args:
        paths: The files.
        labels: int64 `[N]`.
        side: Side of the square.
        on_error: What a file that cannot be read does: stop with an error that names it, or be left out.
    """

    def __init__(self, paths: Sequence[Path], labels: Tensor, side: int, on_error: OnError = "stop") -> None:
        if side < 1:
            raise DataError(f"the side of the images must be at least 1, got {side}")
        check_labels(labels, len(paths))
        self.paths, self.labels, self.side, self.on_error = tuple(paths), labels, side, on_error

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        return 3, self.side, self.side

    @property
    def targets(self) -> Tensor:
        """The labels."""
        return self.labels

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Decode the files at `indices`; what cannot be read is left out, or an error."""
        images = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        readable: list[int] = []
        for position, index in enumerate(indices):
            try:
                images[len(readable)] = decode(self.paths[index], self.side)
                readable.append(position)
            except DataError:
                if self.on_error == "stop":
                    raise
        return images[: len(readable)], readable

    def subset(self, indices: Tensor) -> Self:
        """The files at `indices` only."""
        chosen = [self.paths[index] for index in indices.tolist()]
        return type(self)(chosen, self.labels[indices], self.side, self.on_error)

    def decode_all(self, workers: int = 0) -> tuple[Pixels, list[Path]]:
        """Decode every file once, into memory.

        Args:
            workers: How many processes decode; 0: this one.

        Returns:
            The images that could be read, and the files that could not.
        """
        images = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        batches = [batch.tolist() for batch in torch.arange(len(self)).split(64)] if len(self) else []
        readable: list[int] = []
        for batch, (loaded, positions) in zip(batches, load_batches(self, batches, workers), strict=True):
            images[len(readable) : len(readable) + len(loaded)] = loaded
            readable += [batch[position] for position in positions]
        skipped = sorted(set(range(len(self))) - set(readable))
        return Pixels(images[: len(readable)], self.labels[readable]), [self.paths[index] for index in skipped]


def decode(path: Path, side: int) -> Tensor:
    """One file as an upright RGB square, uint8 `[3, side, side]`."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            image.draft(None, (side, side))  # a JPEG many times too large is decoded at a half, a quarter or an eighth
            upright = ImageOps.exif_transpose(image)
            # Pillow's filters look at every pixel they shrink: antialiased.
            square = ImageOps.fit(_rgb(upright), (side, side), Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow's readers raise what they stumble on: OSError, SyntaxError, struct.error, …
        reason = " ".join(str(error).split())
        raise DataError(
            f"cannot read {path} as an image ({reason}); replace or remove it, or leave out all such files with "
            "--data.on_error skip"
        ) from None
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def _rgb(image: "Image.Image") -> "Image.Image":
    """Transparency is dropped. Where Pillow would clip 16 bits to 255, the upper 8 are taken."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its pixels have 32 bits, mode {image.mode}; 8 or 16 were expected")
    elif image.mode == "P":
        image = image.convert("RGBA")  # straight to RGB Pillow warns where the palette has transparency
    return image.convert("RGB")
