"""A trained model as one module: images of any size in, logits out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.data.decoding import to_tensor
from madao.errors import DataError
from madao.inference.preprocessing import Preprocessing

if TYPE_CHECKING:
    from PIL import Image


class ImageModel(nn.Module):
    """A network with its preprocessing and its classes.

    Args:
        network: The network.
        preprocessing: Prepares images as evaluation does.
        classes: Names of the classes, in the order of the outputs.
        task: classification, segmentation or moco.
        architecture: Name of the network, if it has one.

    Example:
        >>> model = madao.load_model("runs/photos")  # doctest: +SKIP
        >>> model.classes[model(Image.open("photo.jpg")).argmax()]  # doctest: +SKIP
        'cat'
    """

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing,
        classes: Sequence[str],
        task: str = "classification",
        architecture: str | None = None,
    ) -> None:
        super().__init__()
        self.network, self.preprocessing = network, preprocessing
        self.classes, self.task, self.architecture = tuple(classes), task, architecture

    def forward(self, images: "Tensor | Image.Image | Sequence[Tensor | Image.Image]") -> Tensor:
        """Return the outputs for images.

        Args:
            images: A batch `[B, C, H, W]`, one image, or a list of images, which may have different sizes. An image is
                a PIL image or a tensor `[C, H, W]`, uint8 or float in [0, 1], with 1 or 3 channels.

        Returns:
            Logits `[B, classes]`; for segmentation `[B, classes, H, W]` at the size of the images; for MoCo features
            `[B, D]`. One image gives one result, without B.

        Raises:
            DataError: The list is empty, or one for segmentation holds images of different sizes.
        """
        if isinstance(images, Tensor) and images.ndim == 4:
            return self.outputs(self.preprocessing(images), images.shape[2:])
        if not isinstance(images, Sequence):
            return self([images])[0]  # type: ignore[no-any-return]
        batches = [self._batch_of_one(image) for image in images]
        sizes = {tuple(batch.shape[2:]) for batch in batches}
        if not batches:
            raise DataError("expected at least one image, got an empty list")
        if self.task == "segmentation" and len(sizes) > 1:
            raise DataError(f"expected images of one size for segmentation, got {len(sizes)} sizes; pass one at a time")
        inputs = torch.cat([self.preprocessing(batch) for batch in batches])
        return self.outputs(inputs, sizes.pop())

    def outputs(self, inputs: Tensor, size: Sequence[int]) -> Tensor:
        """Return the network's outputs for preprocessed images; masks at the size of the images."""
        if self.task == "moco":
            features: Tensor = self.network.features(inputs)  # type: ignore[operator]
            return features
        logits: Tensor = self.network(inputs)
        if self.task == "segmentation" and logits.shape[2:] != torch.Size(size):
            return F.interpolate(logits, size=[*size], mode="bilinear", align_corners=False)
        return logits

    def _batch_of_one(self, image: Any) -> Tensor:
        pixels = image if isinstance(image, Tensor) else to_tensor(image)
        return pixels[None].to(self.preprocessing.mean.device)
