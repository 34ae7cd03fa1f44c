"""A policy for each image: what all have in common, and how each departs from it by what it shows."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from madao.ops.checks import check_images
from madao.policy.conditional.class_conditional import SHRINKAGE, pulled
from madao.policy.conditional.features import CENTRES, KINDS, NAMES, SCALES, features, of_kinds
from madao.policy.conditional.network import Layers, Network, Outputs
from madao.policy.learned import Policy, settings_of
from madao.policy.policy_tables import PolicyTables, rows_of_features
from madao.policy.spec import PolicySpec, round_sig

_FIXED = ("centre", "scale", "weights", "bias", "offset")
_KINDS = Outputs._fields
_AT_ONCE = 64
"""Images looked at: of large ones a thousand would take gigabytes."""


class ImagePolicy(Policy):
    """`Policy` whose logits depend on what the image shows: those of image x are φ + V h(x) / √H, φ shared.

    h(x) = tanh(W f(x) / √F + b) − c, H hidden units on F = 24 standardised numbers f of the image: means and deviations
    of its channels, how much neighbours differ, and the brightness of 4 × 4 patches (`madao.policy.conditional.features`). V starts
    at zero, so that the law is that of `Policy` until it learns. c is what h is on average, so that φ
    is the mean of the images' logits; `selection`, `application` and `magnitude` are those of φ, `law_of(images)` those
    of images.

    W and b stay as they were drawn, from normal laws: logits are linear in what learns, so that every number of V has
    an unbiased gradient from the first step. Where the hidden layer learns too, noise moves it under V's feet
    (docs/policies.md). V has the prior that the deviations of `ClassPolicy` have: `with_prior` adds λ r V to ∂g/∂V.

    Args:
        stages: How many operations in a row, K.
        units: How many hidden units, H.
        shrinkage: λ, 0 for none.
        **settings: Those of `Policy`: `operations`, `limits`, `without`, `fill`, `temperature`,
            `application_temperature`, `magnitude_jitter`, `init_magnitude`, `seed`.
    """

    uses_image = True

    def __init__(self, stages: int = 2, units: int = 16, shrinkage: float = SHRINKAGE, **settings: Any) -> None:
        super().__init__(stages, **settings)
        if isinstance(units, bool) or not isinstance(units, int) or units < 1:
            raise ValueError(f"units must be a whole number of at least 1, got {units!r}")
        if not shrinkage >= 0:
            raise ValueError(f"shrinkage must be at least 0, got {shrinkage!r}")
        self.units, self.shrinkage = units, shrinkage
        random = torch.Generator().manual_seed(settings.get("seed", 0))
        self.register_buffer("centre", of_kinds(CENTRES))
        self.register_buffer("scale", of_kinds(SCALES))
        self.register_buffer("standardised", torch.tensor(False))
        # Each kind of feature is heard alike, however many numbers it has.
        heard = of_kinds(tuple(math.sqrt(len(NAMES) / len(KINDS) / count) for count in KINDS))
        self.register_buffer("weights", torch.randn(units, len(NAMES), generator=random) * heard)
        self.register_buffer("bias", torch.randn(units, generator=random))
        self.register_buffer("offset", self.get_buffer("bias").tanh())
        for kind in _KINDS:
            count = self.get_parameter(f"{kind}_logits").shape[1]
            self.register_parameter(f"{kind}_outputs", nn.Parameter(torch.zeros(stages, units, count)))

    def standardise(self, images: Tensor) -> None:
        """Let features and hidden units be centred and scaled as these images have them: a thousand will do.

        Without it they are as photographs have them. Before learning begins: it changes what V means.

        Args:
            images: `[B, C, H, W]`, uint8 or float in [0, 1], as they are given to the policy.
        """
        check_images(images)
        if len(images) < 2:
            raise ValueError(f"standardise needs two images or more to see how they differ, got {len(images)}")
        seen = torch.cat([features(some) for some in images.split(_AT_ONCE)]).to(self.get_buffer("centre"))
        deviation, mean = torch.std_mean(seen, dim=0, correction=0)
        self.get_buffer("centre").copy_(mean)
        # What hardly differs here must not be all that counts where it does.
        self.get_buffer("scale").copy_(torch.maximum(deviation, 0.1 * of_kinds(SCALES).to(deviation)))
        with torch.no_grad():
            self.get_buffer("offset").add_(self._layers().hidden(seen).mean(0))
        self.get_buffer("standardised").fill_(True)

    def with_prior(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """∂g/∂V + λ r V for the outputs that learn; the shared part has no prior."""
        return pulled(self, gradients, "_outputs", self.shrinkage)

    def spec(self) -> PolicySpec:
        """The policy as it is now: what images share, and the network."""
        selection, application, magnitude = (
            self.get_parameter(f"{kind}_outputs").detach().transpose(1, 2).tolist() for kind in _KINDS
        )
        stages = []
        for kinds in zip(selection, application, magnitude, strict=True):
            strengths = iter(kinds[2])
            stages.append(
                tuple(
                    Outputs(
                        _rounded(chosen), _rounded(applied), _rounded(next(strengths)) if op.has_magnitude else None
                    )
                    for op, chosen, applied in zip(self.operations, kinds[0], kinds[1], strict=True)
                )
            )
        weights = tuple(_rounded(row) for row in self.get_buffer("weights").tolist())
        vectors = {name: _rounded(self.get_buffer(name).tolist()) for name in _FIXED if name != "weights"}
        network = Network(weights=weights, stages=tuple(stages), **vectors)
        return dataclasses.replace(super().spec(), network=network)

    @classmethod
    def from_spec(cls, spec: PolicySpec, **settings: Any) -> "ImagePolicy":
        """A policy that starts where a spec with a network stands and goes on learning.

        Args:
            spec: Stages, operations, fill, variation, network and numbers.
            **settings: What a spec does not hold: `shrinkage`, `temperature`, `application_temperature`, `seed`.
        """
        if spec.network is None:
            raise ValueError("this policy has no network: it is the same for all images; use Policy.from_spec")
        units = len(spec.network.bias)
        policy = cls(len(spec.stages), units, **settings_of(spec), **settings)
        policy._start_at(spec)
        return policy

    def _start_at(self, spec: PolicySpec) -> None:
        super()._start_at(spec)
        assert spec.network is not None
        layers = spec.network.tensors()
        learned = self.get_buffer("_with_magnitude")
        with torch.no_grad():
            for name in _FIXED:
                self.get_buffer(name).copy_(getattr(layers, name))
            outputs = layers.selection, layers.application, layers.magnitude[..., learned]
            for kind, values in zip(_KINDS, outputs, strict=True):
                self.get_parameter(f"{kind}_outputs").copy_(values)

    def _layers(self) -> Layers:
        outputs = (self.get_parameter(f"{kind}_outputs") for kind in _KINDS)
        return Layers(*(self.get_buffer(name) for name in _FIXED), *outputs)

    def _law(self, condition: Tensor | None, count: int) -> PolicyTables:
        rows = rows_of_features(condition, count, len(NAMES))
        assert condition is not None
        layers = self._layers()
        selection, application, magnitude = (
            shared + departure for shared, departure in zip(self._shared(), layers.departures(condition), strict=True)
        )
        return PolicyTables(selection, application, self._spread(magnitude.sigmoid()), rows)

    def extra_repr(self) -> str:
        """Hidden units, stages and operations, for print."""
        return f"units={self.units}, {super().extra_repr()}, shrinkage={self.shrinkage}"


def _rounded(values: list[float]) -> tuple[float, ...]:
    return tuple(round_sig(value) for value in values)
