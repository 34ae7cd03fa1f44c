"""Policies with nothing to learn, under the learned one's interface: the controls."""

import dataclasses
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from madao.ops import PAPER, Operation, choose
from madao.ops.geometric import Fill
from madao.policy import sampling
from madao.policy.base import AugmentationPolicy
from madao.policy.conditional.features import NAMES
from madao.policy.conditional.network import Layers
from madao.policy.device_cache import on_device
from madao.policy.draw import Draw
from madao.policy.policy_tables import PolicyTables, rows_of_features, rows_of_labels
from madao.policy.spec import OperationParams, PolicySpec

START = torch.tensor(0.5).sigmoid().item()
"""Application probability and magnitude a learned policy starts with."""


class FrozenPolicy(AugmentationPolicy):
    """Plays a `PolicySpec`: the law of `Policy` with its numbers fixed.

    Args:
        spec: The policy.
        seed: Where the policy's own random numbers start.
    """

    def __init__(self, spec: PolicySpec, seed: int = 0) -> None:
        super().__init__(spec.operations, len(spec.stages), spec.fill, seed)
        self._spec = spec
        self.classes = spec.classes
        selection, application, magnitude = spec.tables()
        self.register_buffer("_log_selection", selection.log(), persistent=False)
        self.register_buffer("_application", application, persistent=False)
        self.register_buffer("_magnitude", magnitude, persistent=False)
        self.uses_image = spec.network is not None
        if spec.network is not None:
            for name, tensor in spec.network.tensors()._asdict().items():
                self.register_buffer(f"_network_{name}", tensor, persistent=False)

    def spec(self) -> PolicySpec:
        """What it plays."""
        return self._spec

    def law_of(self, images: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """π, p and μ that each image is drawn by, `[K, B, n]` each."""
        law = self._law(self.condition(images, labels), len(images), images.device)
        log_selection, application, magnitude = law.of_images(len(images))
        return log_selection.exp(), application, magnitude

    def sample(
        self, images: Tensor, generator: torch.Generator | None = None, *, condition: Tensor | None = None
    ) -> Draw:
        """Draw for a batch."""
        generator = self.generator(images.device) if generator is None else generator
        shape = (self.stages, len(images))
        law = self._law(self.condition(images) if condition is None else condition, len(images), images.device)
        noise = sampling.gumbel_noise((*shape, len(self.operations)), generator)
        choice = sampling.categorical(law.of_each(law.selection), noise)
        uniform = torch.rand(shape, generator=generator, device=images.device)
        sign = sampling.fair_signs(shape, generator)
        return Draw(
            choice=choice,
            applied=uniform < law.chosen(law.application, choice),
            magnitude=sampling.varied(law.chosen(law.magnitude, choice), self._spec.magnitude_jitter, generator),
            sign=sign,
        )

    def _law(self, condition: Tensor | None, count: int, device: torch.device) -> PolicyTables:
        """By which `count` images are drawn: with log π, p and μ."""
        selection, application, magnitude = (
            self.get_buffer(name).to(device) for name in ("_log_selection", "_application", "_magnitude")
        )
        if self.classes:
            return PolicyTables(selection, application, magnitude, rows_of_labels(condition, count, self.classes))
        if not self.uses_image:
            return PolicyTables(selection, application, magnitude)
        rows = rows_of_features(condition, count, len(NAMES))
        assert condition is not None
        layers = Layers(*(self.get_buffer(f"_network_{name}").to(device) for name in Layers._fields))
        more = layers.departures(condition)
        return PolicyTables(
            (selection + more[0]).log_softmax(-1),
            (application.logit() + more[1]).sigmoid(),
            (magnitude.logit() + more[2]).sigmoid(),
            rows,
        )


def _constant(
    operations: tuple[Operation, ...], stages: int, application: float, magnitude: float, fill: Fill
) -> PolicySpec:
    """Every operation equally likely, applied as often, and equally strong."""
    for name, value in (("application", application), ("magnitude", magnitude)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
    if not isinstance(stages, int) or stages < 1:
        raise ValueError(f"the number of stages must be a whole number of at least 1, got {stages!r}")
    stage = tuple(
        OperationParams.rounded(operation, 1 / len(operations), application, magnitude) for operation in operations
    )
    return PolicySpec(operations, (stage,) * stages, fill)


class Uniform(FrozenPolicy):
    """What a learned policy is before it learns, for good: the control that shows what learning adds.

    Args:
        stages: How many operations in a row.
        operations: Which operations to choose from.
        limits: The strongest value of some operations in real units.
        exclude: Names of operations to leave out.
        application: Probability that a drawn operation is applied.
        magnitude: μ of every operation.
        fill: The colour geometric operations leave outside the image, in [0, 1].
        magnitude_jitter: How much weaker than μ a draw may be, as of `Policy`.
        seed: Where the policy's own random numbers start.
    """

    def __init__(
        self,
        stages: int = 2,
        operations: Iterable[str | Operation] = PAPER,
        limits: Mapping[str, float] | None = None,
        exclude: Iterable[str] = (),
        application: float = START,
        magnitude: float = START,
        fill: Fill = 0.0,
        magnitude_jitter: float = 0.0,
        seed: int = 0,
    ) -> None:
        chosen = choose(operations, limits, exclude)
        spec = _constant(chosen, stages, application, magnitude, fill)
        super().__init__(dataclasses.replace(spec, magnitude_jitter=magnitude_jitter), seed)


class RandAugment(FrozenPolicy):
    """`n` operations in a row, equally likely, always applied, all at magnitude `m` (Cubuk et al., 2020).

    The operations are the paper's fourteen: `Invert` is among them and the identity is not.

    Args:
        n: How many operations in a row.
        m: Their magnitude in [0, 1]. Level 9 of RandAugment's 30 is 0.3.
        operations: Which operations to choose from.
        fill: The colour geometric operations leave outside the image, in [0, 1].
        seed: Where the policy's own random numbers start.
    """

    def __init__(
        self,
        n: int = 2,
        m: float = 0.3,
        operations: Iterable[str | Operation] = PAPER,
        fill: Fill = 0.0,
        seed: int = 0,
    ) -> None:
        if not 0 <= m <= 1:
            raise ValueError(f"m is a magnitude in [0, 1], got {m!r}; level 9 of RandAugment's 30 is m = 9 / 30 = 0.3")
        super().__init__(_constant(choose(operations), n, 1.0, m, fill), seed)


@dataclasses.dataclass(frozen=True)
class _TrivialSpace:
    """The ranges of one of TrivialAugment's spaces, in this package's units but for translation."""

    limits: Mapping[str, float]
    translation: float
    """In pixels, whatever the size of the image."""


_ENHANCED = ("Color", "Contrast", "Brightness", "Sharpness")
_SPACES = {
    "wide": _TrivialSpace(
        {"ShearX": 0.99, "ShearY": 0.99, "Rotate": 135, "Posterize": 2, **dict.fromkeys(_ENHANCED, 1.99)},
        translation=32,
    ),
    "normal": _TrivialSpace({**dict.fromkeys(_ENHANCED, 1.9)}, translation=10),
}


class TrivialAugment(AugmentationPolicy):
    """One operation an image, equally likely, at a magnitude drawn evenly from 31 levels (Müller & Hutter, 2021).

    The fourteen choices are the paper's operations without `Invert`, and doing nothing, which a draw shows as an
    operation not applied.

    Args:
        space: `"wide"` (rotation to 135°, translation to 32 pixels, …) or `"normal"` (30°, 10 pixels, …).
        fill: The colour geometric operations leave outside the image, in [0, 1].
        seed: Where the policy's own random numbers start.
    """

    levels = 31

    def __init__(self, space: str = "wide", fill: Fill = 0.0, seed: int = 0) -> None:
        if space not in _SPACES:
            raise ValueError(f"space must be 'wide' or 'normal', got {space!r}")
        # Whole sides: `sample` scales to pixels once it knows the image.
        limits = {**_SPACES[space].limits, "TranslateX": 1.0, "TranslateY": 1.0}
        super().__init__(choose(PAPER, limits, exclude=["Invert"]), 1, fill, seed)
        self.space = space

    def sample(
        self, images: Tensor, generator: torch.Generator | None = None, *, condition: Tensor | None = None
    ) -> Draw:
        """Draw for a batch."""
        device = images.device
        generator = self.generator(device) if generator is None else generator
        shape, count = (1, len(images)), len(self.operations)
        outcome = torch.randint(0, count + 1, shape, generator=generator, device=device)
        level = torch.randint(0, self.levels, shape, generator=generator, device=device) / (self.levels - 1)
        choice = outcome.clamp(max=count - 1)
        return Draw(
            choice=choice,
            applied=outcome < count,
            magnitude=(level * self._scale(images)[choice]).clamp(max=1),
            sign=sampling.fair_signs(shape, generator),
        )

    def _scale(self, images: Tensor) -> Tensor:
        """What magnitude 1 is for each operation: translation's pixels as a part of this image's sides."""
        pixels = _SPACES[self.space].translation
        part = {
            "TranslateX": pixels / max(images.shape[3], 1),
            "TranslateY": pixels / max(images.shape[2], 1),
        }
        return on_device(tuple(part.get(operation.name, 1.0) for operation in self.operations), images.device)
