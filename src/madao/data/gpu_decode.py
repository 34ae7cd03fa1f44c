"""Images that the training device decodes, a batch at a time. Worker processes only read the files.

On one H200, nvJPEG decoded 25,000 photographs of 500 × 375 pixels a second. One core of its host decoded 760.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from madao.data.decoding import centre_square, jpegs, plain_jpeg, resize, upright
from madao.data.lazy_images import LazyImages

_PIXELS = 2**25
"""Maximal number of pixels decoded by one call: 180 images of ImageNet, enough to keep the decoder busy in 100 MB."""


@dataclasses.dataclass(frozen=True)
class JpegBatch:
    """A batch of files, partly decoded, on its way from a worker to the training process.

    A position that is neither in `packed` nor in `decoded` belongs to an unreadable image.

    Attributes:
        indices: Indices of the images.
        data: The JPEG files one after the other, uint8 `[bytes]`.
        lengths: Length of each JPEG file in bytes.
        orientations: EXIF orientation of each JPEG file.
        pixels: Number of pixels of each JPEG file.
        packed: Position in the batch of each JPEG file.
        squares: All other images, decoded by the worker, uint8 `[n, 3, side, side]`.
        decoded: Position in the batch of each decoded image.
    """

    indices: list[int]
    data: Tensor
    lengths: list[int]
    orientations: list[int]
    pixels: list[int]
    packed: list[int]
    squares: Tensor
    decoded: list[int]


class GpuDecodedImages:
    """Images that a device decodes. `load` decodes them on the CPU.

    Args:
        images: The images to decode.
        device: The device that decodes. The CPU serves as a reference.
    """

    def __init__(self, images: LazyImages, device: torch.device) -> None:
        self.images, self.device = images, device

    @property
    def labels(self) -> Tensor:
        """The class of each image, int64 `[N]` on the CPU."""
        return self.images.labels

    @property
    def targets(self) -> Tensor:
        """The training target of each image."""
        return self.images.targets

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        return self.images.shape

    @property
    def skipped(self) -> set[int]:
        """Indices of the images that batches left out so far."""
        return self.images.skipped

    def __len__(self) -> int:
        return len(self.images)

    def load(self, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Decode the images at `indices` on the CPU."""
        return self.images.load(indices)

    def subset(self, indices: Tensor) -> Self:
        """Return the images at `indices`."""
        return type(self)(self.images.subset(indices), self.device)

    def pack(self, indices: list[int]) -> JpegBatch:
        """Read the files at `indices` in a worker, and decode those that are not plain JPEG files."""
        files: list[bytes] = []
        about: list[tuple[int, int]] = []
        squares: list[Tensor] = []
        packed: list[int] = []
        decoded: list[int] = []
        for position, index in enumerate(indices):
            try:
                data = self.images.read(index)
                plain = plain_jpeg(data, self.images.max_pixels)
            except Exception as error:  # Pillow raises errors of many types
                self.images.refuse(index, error)
                continue
            if plain is not None:
                files.append(data)
                about.append(plain)
                packed.append(position)
                continue
            image = self.images.decoded(index)
            if image is not None:
                squares.append(image)
                decoded.append(position)
        return JpegBatch(
            indices=indices,
            data=torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8) if files else torch.empty(0).byte(),
            lengths=[len(data) for data in files],
            orientations=[orientation for orientation, _ in about],
            pixels=[pixels for _, pixels in about],
            packed=packed,
            squares=torch.stack(squares) if squares else torch.empty(0, *self.shape, dtype=torch.uint8),
            decoded=decoded,
        )

    def unpack(self, batch: JpegBatch) -> tuple[Tensor, list[int]]:
        """Decode the JPEG files of a batch on the device.

        Returns:
            All readable images, uint8 `[n, 3, side, side]`, and their positions in the batch.
        """
        found = dict(zip(batch.decoded, batch.squares.to(self.device), strict=True))
        files = batch.data.split(batch.lengths)
        for part in _parts(batch.pixels, _PIXELS):
            places = batch.packed[part]
            try:
                whole = jpegs(files[part], self.device)
            except RuntimeError:  # the error does not name the file, so decode one by one on the CPU
                alone = {place: self.images.decoded(batch.indices[place]) for place in places}
                found |= {place: image.to(self.device) for place, image in alone.items() if image is not None}
                continue
            squares = self._squares(whole)
            turns = zip(places, squares, batch.orientations[part], strict=True)
            found |= {place: upright(image, orientation) for place, image, orientation in turns}
        readable = sorted(found)
        if not readable:
            return torch.empty(0, *self.shape, dtype=torch.uint8, device=self.device), readable
        return torch.stack([found[place] for place in readable]), readable

    def _squares(self, images: list[Tensor]) -> list[Tensor]:
        """Crop and resize images. Images of one size are resized together, which saves kernel launches."""
        cut = [centre_square(image) for image in images]
        by_side: dict[int, list[int]] = {}
        for place, image in enumerate(cut):
            by_side.setdefault(image.shape[-1], []).append(place)
        result = list(cut)
        for places in by_side.values():
            resized = resize(torch.stack([cut[place] for place in places]), self.images.side)
            for place, image in zip(places, resized, strict=True):
                result[place] = image
        return result


def _parts(pixels: Sequence[int], limit: int) -> Iterator[slice]:
    """Yield slices of consecutive images with at most `limit` pixels in total, or of one larger image."""
    start = total = 0
    for place, count in enumerate(pixels):
        if place > start and total + count > limit:
            yield slice(start, place)
            start, total = place, 0
        total += count
    if len(pixels) > start:
        yield slice(start, len(pixels))
