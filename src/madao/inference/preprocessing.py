"""The preparation of images for a trained model: the same as in evaluation."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.data.decoding import decode, decode_whole, resize
from madao.errors import DataError
from madao.ops.checks import check_images
from madao.ops.enhance import grey


class Preprocessing(nn.Module):
    """A module from images of any size to the input of a network.

    It prepares images as evaluation does. It cuts the central square, resizes it to `stored_size` with antialiasing,
    cuts its centre of `size` pixels, and normalises. For masks, it keeps the whole image and resizes its shorter side
    to `stored_size`.

    Args:
        size: Side of the network's input in pixels.
        stored_size: Side to which squares are resized, at least `size`.
        mean: Mean of each channel, of images in [0, 1]. As many channels as the network takes, 1 or 3.
        std: Standard deviation of each channel.
        whole: Whether to keep the whole image, as masks need it.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, size: int, stored_size: int, mean: Sequence[float], std: Sequence[float], whole: bool = False
    ) -> None:
        super().__init__()
        if not 1 <= size <= stored_size or len(mean) != len(std) or len(mean) not in (1, 3) or not min(std) > 0:
            raise DataError(
                f"expected a size of 1 to stored_size, and 1 or 3 means and positive deviations; got size={size}, "
                f"stored_size={stored_size}, mean={tuple(mean)}, std={tuple(std)}"
            )
        self.size, self.stored_size, self.whole = size, stored_size, whole
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor([*values]).reshape(-1, 1, 1), persistent=False)

    @property
    def channels(self) -> int:
        """Number of channels of the network's input."""
        return len(self.mean)

    def decode(self, data: bytes) -> Tensor:
        """Decode a file as evaluation does, ready for `forward`: uint8 `[3, H, W]`."""
        return decode_whole(data) if self.whole else decode(data, self.stored_size)

    def forward(self, images: Tensor) -> Tensor:
        """Prepare a batch, uint8 or float in [0, 1], `[B, C, H, W]`."""
        check_images(images)
        images = self._convert_channels(images)
        if self.whole:
            return self.normalise(_resize(images, self._whole_size(*images.shape[2:])))
        return self.normalise(_centre(_resize(_centre(images, min(images.shape[2:])), self.stored_size), self.size))

    def normalise(self, images: Tensor) -> Tensor:
        """Scale to [0, 1], subtract the mean and divide by the standard deviation."""
        values = images / 255 if images.dtype == torch.uint8 else images
        return (values - self.mean) / self.std

    def extra_repr(self) -> str:
        """Return the settings that `print` shows."""
        return f"size={self.size}, stored_size={self.stored_size}, channels={self.channels}, whole={self.whole}"

    def _convert_channels(self, images: Tensor) -> Tensor:
        if images.shape[1] == self.channels:
            return images
        return grey(images).to(images.dtype) if self.channels == 1 else images.expand(-1, 3, -1, -1)

    def _whole_size(self, height: int, width: int) -> tuple[int, int]:
        scale = self.stored_size / min(height, width)
        return round(height * scale), round(width * scale)


def _centre(images: Tensor, side: int) -> Tensor:
    top, left = ((length - side) // 2 for length in images.shape[2:])
    return images[:, :, top : top + side, left : left + side]


def _resize(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    if images.dtype == torch.uint8:
        return resize(images, size)
    return F.interpolate(images, size=size, mode="bilinear", antialias=True)
