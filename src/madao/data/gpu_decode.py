"""Images whose files workers only read: the device that trains decodes them, a batch at a time.

On one H200 nvJPEG decoded 25,000 photographs of 500 × 375 pixels a second, a core of its host 760.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from madao.data.decoding import jpegs, middle, plain_jpeg, scaled, upright
from madao.data.encoded import LazyImages

_PIXELS = 2**25
"""Decoded by one call, at most: 180 images of ImageNet keep the decoder busy, in 100 MB beside the model."""


@dataclasses.dataclass(frozen=True)
class JpegBatch:
    """What a worker hands over of a batch.

    Attributes:
        indices: Of the images.
        data: uint8 `[bytes]`: the JPEG files, one behind the other.
        lengths: Of each.
        orientations: EXIF's, of each.
        pixels: How many each has.
        packed: The places in the batch whose files these are.
        squares: uint8 `[n, 3, side, side]`: what is no plain JPEG, decoded by the worker.
        decoded: The places in the batch of those; what is in neither could not be read.
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
    """Images that are decoded on a device; `load` is the same on the CPU.

    Args:
        images: What to decode.
        device: By which. The CPU decodes too, to compare with.
    """

    def __init__(self, images: LazyImages, device: torch.device) -> None:
        self.images, self.device = images, device

    @property
    def labels(self) -> Tensor:
        """The class of each image, int64 `[N]` on the CPU."""
        return self.images.labels

    @property
    def targets(self) -> Tensor:
        """What is learned of each image."""
        return self.images.targets

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        return self.images.shape

    def __len__(self) -> int:
        return len(self.images)

    def load(self, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Decode the images at `indices` here and now, on the CPU."""
        return self.images.load(indices)

    def subset(self, indices: Tensor) -> Self:
        """The images at `indices` only."""
        return type(self)(self.images.subset(indices), self.device)

    def pack(self, indices: list[int]) -> JpegBatch:
        """What a worker does: read, and decode only what is no plain JPEG."""
        files: list[bytes] = []
        about: list[tuple[int, int]] = []
        squares: list[Tensor] = []
        packed: list[int] = []
        decoded: list[int] = []
        for position, index in enumerate(indices):
            try:
                data = self.images.read(index)
                plain = plain_jpeg(data)
            except Exception as error:  # Pillow's readers raise what they stumble on
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
        """The rest: uint8 `[n, 3, side, side]` on the device, and which places of the batch they are."""
        found = dict(zip(batch.decoded, batch.squares.to(self.device), strict=True))
        files = batch.data.split(batch.lengths)
        for part in _parts(batch.pixels):
            places = batch.packed[part]
            try:
                whole = jpegs(files[part], self.device)
            except RuntimeError:  # which does not say of which file; the CPU does
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
        """Each at its side. Those of one size together: alone they would be bound by launches."""
        cut = [middle(image) for image in images]
        alike: dict[int, list[int]] = {}
        for place, image in enumerate(cut):
            alike.setdefault(image.shape[-1], []).append(place)
        result = list(cut)
        for places in alike.values():
            together = scaled(torch.stack([cut[place] for place in places]), self.images.side)
            for place, image in zip(places, together, strict=True):
                result[place] = image
        return result


def _parts(pixels: Sequence[int]) -> Iterator[slice]:
    """Runs of images that have at most `_PIXELS` together, or are one."""
    start = total = 0
    for place, count in enumerate(pixels):
        if place > start and total + count > _PIXELS:
            yield slice(start, place)
            start, total = place, 0
        total += count
    if len(pixels) > start:
        yield slice(start, len(pixels))
