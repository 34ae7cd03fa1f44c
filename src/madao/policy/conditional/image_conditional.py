"""A policy with its own probabilities and magnitudes for each image, computed from the image."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from madao.ops.checks import check_images
from madao.policy.conditional.conditional_policy import SHRINKAGE, ConditionalPolicy
from madao.policy.conditional.features import CENTRES, KINDS, NAMES, SCALES, features, of_kinds
from madao.policy.conditional.network import Layers, Network, Outputs
from madao.policy.conditional.rows import rows_of_features
from madao.policy.spec import PolicySpec
from madao.policy.stages import round_sig

_FIXED = ("centre", "scale", "weights", "bias", "offset")
_CHUNK = 64
"""Images whose features are computed together: a thousand large ones would take gigabytes."""


class ImagePolicy(ConditionalPolicy):
    """A `Policy` whose logits depend on the image: image x has φ + V h(x) / √H, with φ shared by all images.

    h(x) = tanh(W f(x) / √F + b) − c are H hidden units on F = 24 standardised features of the image
    (`madao.policy.conditional.features`). V starts at zero, so the draws are those of `Policy` until V learns. c is the
    mean of h, so φ is the mean of the images' logits. `selection`, `application` and `magnitude` belong to
    φ. `tables_of(images)` returns the probabilities and magnitudes of images.

    W and b are drawn from normal distributions and do not learn. The logits are then linear in V, and V has an unbiased
    gradient from the first step. A hidden layer that learns too would change the meaning of V through its noise
    (docs/policies.md). V has the prior of `ClassPolicy`'s deviations: `with_prior` adds λ r V to ∂g/∂V.

    Args:
        stages: Number of operations in a row, K.
        units: Number of hidden units, H.
        shrinkage: λ; 0 for no prior.
        **settings: Further arguments of `Policy`.

    Example:
        >>> policy = madao.ImagePolicy()
        >>> policy.standardise(images)
        >>> augmented = policy(images)
    """

    conditional_on = "image"
    uses_image = True
    deviations = "outputs"

    def __init__(self, stages: int = 2, units: int = 16, shrinkage: float = SHRINKAGE, **settings: Any) -> None:
        if isinstance(units, bool) or not isinstance(units, int) or units < 1:
            raise ValueError(f"units must be a whole number of at least 1, got {units!r}")
        super().__init__(stages, units, shrinkage, **settings)
        self.units = units
        random = torch.Generator().manual_seed(settings.get("seed", 0))
        self.register_buffer("centre", of_kinds(CENTRES))
        self.register_buffer("scale", of_kinds(SCALES))
        self.register_buffer("standardised", torch.tensor(False))
        # Each of the four kinds of features has the same weight, however many numbers it has.
        weight = of_kinds(tuple(math.sqrt(len(NAMES) / len(KINDS) / count) for count in KINDS))
        self.register_buffer("weights", torch.randn(units, len(NAMES), generator=random) * weight)
        self.register_buffer("bias", torch.randn(units, generator=random))
        self.register_buffer("offset", self.get_buffer("bias").tanh())

    def standardise(self, images: Tensor) -> None:
        """Centre and scale features and hidden units on images as the policy receives them; a thousand are enough.

        The default values are those of photographs. Call this before learning begins: it changes the meaning of V.
        """
        check_images(images)
        if len(images) < 2:
            raise ValueError(f"standardise needs two images or more to see how they differ, got {len(images)}")
        seen = torch.cat([features(some) for some in images.split(_CHUNK)]).to(self.get_buffer("centre"))
        deviation, mean = torch.std_mean(seen, dim=0, correction=0)
        self.get_buffer("centre").copy_(mean)
        # Features that hardly vary here must not dominate where they do.
        self.get_buffer("scale").copy_(torch.maximum(deviation, 0.1 * of_kinds(SCALES).to(deviation)))
        with torch.no_grad():
            self.get_buffer("offset").add_(self._layers().hidden(seen).mean(0))
        self.get_buffer("standardised").fill_(True)

    def condition(self, images: Tensor, labels: Tensor | None = None) -> Tensor | None:
        """Return the features of each image, `[B, 24]`."""
        check_images(images)
        return features(images)

    def spec(self) -> PolicySpec:
        """Return the policy's present numbers: the shared part, and the network."""
        selection, application, magnitude = (part.detach().transpose(1, 2).tolist() for part in self._deviations())
        stages = []
        for chosen, applied, learned in zip(selection, application, magnitude, strict=True):
            strengths = map(_rounded, learned)
            found = [next(strengths) if operation.has_magnitude else None for operation in self.operations]
            stages.append(tuple(map(Outputs, map(_rounded, chosen), map(_rounded, applied), found)))
        weights = tuple(_rounded(row) for row in self.get_buffer("weights").tolist())
        vectors = {name: _rounded(self.get_buffer(name).tolist()) for name in _FIXED if name != "weights"}
        network = Network(weights=weights, stages=tuple(stages), **vectors)
        return dataclasses.replace(super().spec(), network=network)

    @classmethod
    def _arguments_of(cls, spec: PolicySpec) -> dict[str, Any]:
        assert spec.network is not None
        return super()._arguments_of(spec) | {"units": len(spec.network.bias)}

    def _start_at(self, spec: PolicySpec) -> None:
        super()._start_at(spec)
        assert spec.network is not None
        layers = spec.network.tensors()
        learned = self.get_buffer("_with_magnitude")
        with torch.no_grad():
            for name in _FIXED:
                self.get_buffer(name).copy_(getattr(layers, name))
            outputs = layers.selection, layers.application, layers.magnitude[..., learned]
            for part, values in zip(self._deviations(), outputs, strict=True):
                part.copy_(values)

    def _layers(self) -> Layers:
        return Layers(*(self.get_buffer(name) for name in _FIXED), *self._deviations())

    def _logits(self, condition: Tensor | None, count: int) -> tuple[tuple[Tensor, ...], Tensor | None]:
        found, rows = rows_of_features(condition, count, len(NAMES))
        pairs = zip(self._shared(), self._layers().departures(found), strict=True)
        return tuple(shared + departure for shared, departure in pairs), rows

    def extra_repr(self) -> str:
        """Return the settings that `print` shows."""
        return f"units={self.units}, {super().extra_repr()}"


def _rounded(values: list[float]) -> tuple[float, ...]:
    return tuple(round_sig(value) for value in values)
