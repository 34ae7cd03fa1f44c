"""A policy with fixed numbers, as loaded from a policy file."""

import dataclasses

import torch
from torch import Tensor

from madao.ops.checks import check_images
from madao.policy import sampling
from madao.policy.base import AugmentationPolicy
from madao.policy.conditional.features import features
from madao.policy.conditional.frozen_network import FrozenNetwork
from madao.policy.conditional.rows import rows_of_labels
from madao.policy.draw import Draw
from madao.policy.policy_tables import PolicyTables
from madao.policy.spec import PolicySpec


class FrozenPolicy(AugmentationPolicy):
    """A policy that draws as `Policy` does, with the fixed numbers of a `PolicySpec`."""

    def __init__(self, spec: PolicySpec, seed: int = 0) -> None:
        super().__init__(spec.operations, len(spec.stages), spec.fill, seed)
        self._spec = spec
        self._network = None if spec.network is None else FrozenNetwork(spec.network)
        self.classes = spec.classes
        self.uses_image = spec.network is not None
        selection, application, magnitude = spec.tables()
        self.register_buffer("_log_selection", selection.log(), persistent=False)
        self.register_buffer("_application", application, persistent=False)
        self.register_buffer("_magnitude", magnitude, persistent=False)

    def spec(self) -> PolicySpec:
        """Return the policy's numbers."""
        return self._spec

    def _repr_html_(self) -> str:
        return self.spec()._repr_html_()

    def condition(self, images: Tensor, labels: Tensor | None = None) -> Tensor | None:
        """Return the labels of a policy with classes, or the features of images that the policy depends on."""
        if self._network is not None:
            check_images(images)
            return features(images)
        return labels if self.classes else None

    def tables_of(self, images: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return π, p and μ of each image, `[K, B, n]` each."""
        tables = self._tables(self.condition(images, labels), len(images), images.device)
        log_selection, application, magnitude = tables.of_images(len(images))
        return log_selection.exp(), application, magnitude

    def sample(
        self, images: Tensor, generator: torch.Generator | None = None, *, condition: Tensor | None = None
    ) -> Draw:
        """Draw for a batch."""
        generator = self.generator(images.device) if generator is None else generator
        shape = (self.stages, len(images))
        tables = self._tables(self.condition(images) if condition is None else condition, len(images), images.device)
        noise = sampling.gumbel_noise((*shape, len(self.operations)), generator)
        choice = sampling.categorical(tables.of_each(tables.selection), noise)
        uniform = torch.rand(shape, generator=generator, device=images.device)
        sign = sampling.fair_signs(shape, generator)
        magnitude = tables.chosen(tables.magnitude, choice)
        return Draw(
            choice=choice,
            applied=uniform < tables.chosen(tables.application, choice),
            magnitude=sampling.jittered(magnitude, self._spec.magnitude_jitter, generator),
            sign=sign,
        )

    def _tables(self, condition: Tensor | None, count: int, device: torch.device) -> PolicyTables:
        shared = PolicyTables(
            *(self.get_buffer(name).to(device) for name in ("_log_selection", "_application", "_magnitude"))
        )
        if self._network is not None:
            return self._network.tables(shared, condition, count)
        rows = rows_of_labels(condition, count, self.classes) if self.classes else None
        return dataclasses.replace(shared, rows=rows)
