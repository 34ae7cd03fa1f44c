"""Encoders: models with a projection in place of their head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.errors import ModelError
from madao.models.layers import heads
from madao.models.registry import Stem, build


class Encoder(nn.Module):
    """A model from images `[B, C, H, W]` to projections `[B, dimensions]` of its features `[B, width]`.

    If `hidden`, the projection has a hidden layer of `width` units, as in MoCo v2.
    """

    def __init__(self, backbone: nn.Module, width: int, dimensions: int, hidden: bool = False) -> None:
        super().__init__()
        self.backbone, self.dimensions = backbone, dimensions
        layers = [nn.Linear(width, width), nn.ReLU()] if hidden else []
        self.head = nn.Sequential(*layers, nn.Linear(width, dimensions))

    def features(self, images: Tensor) -> Tensor:
        """Return the features, `[B, D]`, for use in other tasks."""
        features: Tensor = self.backbone(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Return the projections, not normalised."""
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
    """Build an encoder from a model with a linear head. See `build`, and `SplitBatchNorm` for `splits`."""
    model = build(name, dimensions, channels, image_size, pretrained, stem)
    names = heads(model)
    head = model.get_submodule(names[0]) if len(names) == 1 else None
    if not isinstance(head, nn.Linear):
        raise ModelError(f"{name} has no single linear head to replace by a projection; try `model.name=resnet18`")
    model.set_submodule(names[0], nn.Identity())
    encoder = Encoder(model, head.in_features, dimensions, hidden)
    return encoder if splits == 1 else split_norms(encoder, splits)


class SplitBatchNorm(nn.BatchNorm2d):
    """BatchNorm with separate statistics for each of `splits` parts of a batch.

    Image i belongs to part i mod `splits`. It imitates training on several devices, where each device sees one part.
    Running statistics are means over the parts.
    """

    def __init__(self, features: int, splits: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(features, eps, momentum)
        self.splits = splits

    def forward(self, images: Tensor) -> Tensor:
        """Normalise `[B, C, H, W]`. In training, B must be a multiple of `splits`."""
        if not self.training:
            return super().forward(images)
        if len(images) % self.splits:
            raise ModelError(f"`task.bn_splits` must divide a batch of {len(images)} images, got {self.splits}")
        # Compiled, the definition is one pass and keeps the channels-last layout that GPUs prefer. Not compiled, it
        # would keep four times as much memory for the gradient.
        return self._by_definition(images) if torch.compiler.is_compiling() else self._by_channels(images)

    def _by_channels(self, images: Tensor) -> Tensor:
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

    def _by_definition(self, images: Tensor) -> Tensor:
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
    """Replace every `nn.BatchNorm2d` of an encoder by a `SplitBatchNorm`, in place."""
    for name, module in list(encoder.named_modules()):
        if isinstance(module, nn.BatchNorm2d) and module.affine and module.track_running_stats:
            split = SplitBatchNorm(module.num_features, splits, eps=module.eps, momentum=module.momentum or 0.1)
            split.load_state_dict(module.state_dict())
            encoder.set_submodule(name, split.to(module.weight))
    return encoder
