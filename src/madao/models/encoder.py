"""An encoder: a model without its head, and a projection in the head's place."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.errors import ModelError
from madao.models.layers import heads
from madao.models.registry import Stem, build


class Encoder(nn.Module):
    """From images `[B, C, H, W]` to features `[B, D]`, and on to their projection `[B, dimensions]`.

    Args:
        backbone: Gives the features.
        width: D.
        dimensions: Of the projection.
        hidden: Whether the projection has a hidden layer as wide as the features, as MoCo v2's has.
    """

    def __init__(self, backbone: nn.Module, width: int, dimensions: int, hidden: bool = False) -> None:
        super().__init__()
        self.backbone, self.dimensions = backbone, dimensions
        layers = [nn.Linear(width, width), nn.ReLU()] if hidden else []
        self.head = nn.Sequential(*layers, nn.Linear(width, dimensions))

    def features(self, images: Tensor) -> Tensor:
        """What is learned for others to use."""
        features: Tensor = self.backbone(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """The projection, not normalised."""
        projection: Tensor = self.head(self.features(images))
        return projection


def build_encoder(
    name: str,
    dimensions: int,
    channels: int = 3,
    image_size: int = 32,
    pretrained: bool | str = False,
    stem: Stem = "auto",
    hidden: bool = False,
    splits: int = 1,
) -> Encoder:
    """Build an encoder of a model that has a linear head.

    Args:
        name: As of `build`, as are channels, image_size, pretrained and stem.
        dimensions: Of the projection, at least 2.
        channels: Of the images.
        image_size: Side of the images.
        pretrained: What the model starts from.
        stem: How resnets begin.
        hidden: Whether the projection has a hidden layer.
        splits: Parts of a batch over which BatchNorm takes statistics of their own, see `SplitBatchNorm`.
    """
    model = build(name, dimensions, channels, image_size, pretrained, stem)
    names = heads(model)
    head = model.get_submodule(names[0]) if len(names) == 1 else None
    if not isinstance(head, nn.Linear):
        raise ModelError(f"{name} has no single linear head whose place a projection could take; choose resnet18, say")
    model.set_submodule(names[0], nn.Identity())
    encoder = Encoder(model, head.in_features, dimensions, hidden)
    return encoder if splits == 1 else split_norms(encoder, splits)


class SplitBatchNorm(nn.BatchNorm2d):
    """BatchNorm with statistics of each of `splits` parts of a batch: image i belongs to part i mod splits.

    What a device sees of a batch where there are several. Running statistics are the means of the parts'.

    Args:
        features: Channels.
        splits: Parts.
        eps: As of `nn.BatchNorm2d`.
        momentum: As of `nn.BatchNorm2d`.
    """

    def __init__(self, features: int, splits: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(features, eps, momentum)
        self.splits = splits

    def forward(self, images: Tensor) -> Tensor:
        """`[B, C, H, W]`; in training B is a multiple of the parts."""
        if not self.training:
            return super().forward(images)
        if len(images) % self.splits:
            raise ModelError(f"a batch of {len(images)} images cannot be split into {self.splits} parts of one size")
        # Compiled it is one pass however images lie in memory, and channels last, as GPUs want them, stay last. Not
        # compiled it would keep four times as much for the gradient.
        return self._as_it_lies(images) if torch.compiler.is_compiling() else self._by_channels(images)

    def _by_channels(self, images: Tensor) -> Tensor:
        """Parts as if they were channels."""
        _, channels, height, width = images.shape
        assert self.running_mean is not None
        assert self.running_var is not None
        mean, var = self.running_mean.repeat(self.splits), self.running_var.repeat(self.splits)
        apart = images.reshape(-1, channels * self.splits, height, width)
        weight, bias = self.weight.repeat(self.splits), self.bias.repeat(self.splits)
        result = F.batch_norm(apart, mean, var, weight, bias, True, self.momentum or 0.0, self.eps)
        with torch.no_grad():
            self.running_mean.copy_(mean.reshape(self.splits, channels).mean(0))
            self.running_var.copy_(var.reshape(self.splits, channels).mean(0))
        return result.reshape(images.shape)

    def _as_it_lies(self, images: Tensor) -> Tensor:
        """The same by its definition."""
        apart = images.unflatten(0, (-1, self.splits)).to(torch.promote_types(images.dtype, torch.float32))
        var, mean = torch.var_mean(apart, (0, 3, 4), correction=0, keepdim=True)
        weight, bias = self.weight[:, None, None], self.bias[:, None, None]
        result: Tensor = (apart - mean) * (weight * torch.rsqrt(var + self.eps)) + bias
        count = apart[:, 0, 0].numel()
        with torch.no_grad():
            assert self.running_mean is not None
            assert self.running_var is not None
            self.running_mean.lerp_(mean.mean((0, 1, 3, 4)).to(self.running_mean), self.momentum or 0.0)
            unbiased = var.mean((0, 1, 3, 4)) * (count / (count - 1))
            self.running_var.lerp_(unbiased.to(self.running_var), self.momentum or 0.0)
        return result.flatten(0, 1).to(images.dtype)


def split_norms(encoder: Encoder, splits: int) -> Encoder:
    """The encoder with every BatchNorm of images split."""
    for name, module in list(encoder.named_modules()):
        if isinstance(module, nn.BatchNorm2d) and module.affine and module.track_running_stats:
            split = SplitBatchNorm(module.num_features, splits, eps=module.eps, momentum=module.momentum or 0.1)
            split.load_state_dict(module.state_dict())
            encoder.set_submodule(name, split.to(module.weight))
    return encoder
