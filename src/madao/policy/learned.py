"""The policy of the paper: selection, application and magnitude, all learned."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.ops import PAPER, Operation, choose
from madao.ops.geometric import Fill
from madao.policy import sampling
from madao.policy.base import AugmentationPolicy
from madao.policy.draw import Draw
from madao.policy.policy_tables import PolicyTables
from madao.policy.spec import PolicySpec, check_magnitude_jitter, rounded_stages

START_LOGIT = 0.5
"""Where probability and magnitude logits start: sigmoid(0.5) = 0.62."""


class Policy(AugmentationPolicy):
    """K stages of operations with learned selection, probability and magnitude: 78 parameters at the defaults.

    For each image and each stage, independently: operation i ~ Categorical(π), applied with
    probability p_i, at magnitude μ_i, with a fair sign. π = softmax(`selection_logits`), p =
    sigmoid(`application_logits`), μ = sigmoid(`magnitude_logits`). The forward value is always such a hard
    draw, in training as in use. With a variation v, which the paper does not have, the magnitude of each draw is
    μ_i (1 − v U), U uniform in [0, 1): μ is then the strongest.

    Two ways to a gradient. `sample(relaxed=True)` gives draws that carry the paper's relaxed derivative: Gumbel-softmax
    through u_i / stop_gradient(u_i), a relaxed Bernoulli, the operation's own derivative in the magnitude.
    `effect_log_prob(draw)` is what a score-function estimator needs. Neither is used by `policy(images)`, which
    leaves the policy alone, so that the training loss cannot pull at it.

    Args:
        stages: How many operations in a row, K.
        operations: Which operations to choose from, by name or as `madao.ops.Operation`.
        limits: The strongest value of some operations in real units: `{"Rotate": 10}` for at most 10 degrees.
        exclude: Names of operations to leave out: `["Invert"]`.
        fill: The colour geometric operations leave outside the image, in [0, 1].
        temperature: τ of the relaxed selection.
        application_temperature: Temperature of the relaxed Bernoulli.
        magnitude_jitter: v in [0, 1]: 0 for the paper's policy, 1 for any magnitude up to μ.
        init_magnitude: μ of every operation before it learns, between 0 and 1. By default the paper's, sigmoid(0.5) = 0.62.
        seed: Where the policy's own random numbers start.
    """

    def __init__(
        self,
        stages: int = 2,
        operations: Iterable[str | Operation] = PAPER,
        limits: Mapping[str, float] | None = None,
        exclude: Iterable[str] = (),
        fill: Fill = 0.0,
        temperature: float = 0.05,
        application_temperature: float = 0.1,
        magnitude_jitter: float = 0.0,
        init_magnitude: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(choose(operations, limits, exclude), stages, fill, seed)
        for name, value in (
            ("temperature", temperature),
            ("application_temperature", application_temperature),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value!r}")
        self.temperature = temperature
        self.application_temperature = application_temperature
        self.magnitude_jitter = check_magnitude_jitter(magnitude_jitter)
        if init_magnitude is not None and not 0 < init_magnitude < 1:
            raise ValueError(
                f"start must lie between 0 and 1, from neither of which a magnitude can learn, got {init_magnitude!r}"
            )
        count = len(self.operations)
        with_magnitude = [i for i, operation in enumerate(self.operations) if operation.has_magnitude]
        self.selection_logits = nn.Parameter(torch.zeros(stages, count))
        self.application_logits = nn.Parameter(torch.full((stages, count), START_LOGIT))
        strength = START_LOGIT if init_magnitude is None else math.log(init_magnitude / (1 - init_magnitude))
        self.magnitude_logits = nn.Parameter(torch.full((stages, len(with_magnitude)), strength))
        self.register_buffer("_with_magnitude", torch.tensor(with_magnitude, dtype=torch.int64), persistent=False)

    @property
    def selection(self) -> Tensor:
        """π, `[K, n]`: each row sums to 1."""
        return self.selection_logits.softmax(-1)

    @property
    def application(self) -> Tensor:
        """p, `[K, n]`."""
        return self.application_logits.sigmoid()

    @property
    def magnitude(self) -> Tensor:
        """μ, `[K, n]`, zero for operations that have none."""
        return self._spread(self.magnitude_logits.sigmoid())

    def sample(
        self,
        images: Tensor,
        generator: torch.Generator | None = None,
        relaxed: bool = False,
        *,
        condition: Tensor | None = None,
    ) -> Draw:
        """Draw for a batch; the same draw with or without gradients.

        Args:
            images: The batch; only its length and device matter, unless the policy looks at it.
            generator: Where randomness comes from, on the device of `images`. By default the policy's own.
            relaxed: Whether the draw carries gradients to the policy's parameters.
            condition: What the law of each image depends on: the labels, `[B]`, for a policy with classes; by default
                what `condition(images)` says.
        """
        generator = self.generator(images.device) if generator is None else generator
        self._check_parameters()
        if condition is None:
            condition = self.condition(images)
        with torch.set_grad_enabled(relaxed and torch.is_grad_enabled()):
            # At least float32: half precision would change the law.
            shape, dtype = (self.stages, len(images)), torch.promote_types(self.selection_logits.dtype, torch.float32)
            noise = sampling.gumbel_noise((*shape, len(self.operations)), generator, dtype)
            law = self._law(condition, len(images))
            logits = law.of_each(law.selection).to(dtype)
            choice = sampling.categorical(logits, noise)
            switch = sampling.logistic_noise(shape, generator, dtype)
            gate = law.chosen(law.application, choice).to(dtype)
            sign = sampling.fair_signs(shape, generator, dtype)
            return Draw(
                choice=choice,
                applied=sampling.bernoulli(gate, switch),
                magnitude=sampling.varied(
                    law.chosen(law.magnitude, choice).to(dtype), self.magnitude_jitter, generator
                ),
                sign=sign,
                weight=sampling.relaxed_weight(logits, noise, choice, self.temperature) if relaxed else None,
                gate=sampling.relaxed_gate(gate, switch, self.application_temperature) if relaxed else None,
            )

    def law_of(self, images: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """π, p and μ that each image is drawn by, `[K, B, n]` each."""
        logits = self._law(self.condition(images, labels), len(images))
        selection, application, magnitude = logits.of_images(len(images))
        return selection.softmax(-1), application.sigmoid(), magnitude

    def log_prob(self, draw: Draw, condition: Tensor | None = None) -> Tensor:
        """The log P of each image's discrete choices, `[B]`, differentiable: Σ_k log π_i + log p_i or log(1 − p_i)."""
        law = self._law(condition, len(draw))
        log_selection = law.chosen(law.selection.log_softmax(-1), draw.choice)
        gate = law.chosen(law.application, draw.choice)
        return (log_selection + F.logsigmoid(torch.where(draw.applied, gate, -gate))).sum(0)

    def effect_log_prob(self, draw: Draw, condition: Tensor | None = None) -> Tensor:
        """The log P of what each image goes through, `[B]`, differentiable; what a score-function estimator wants.

        Σ_k log(π_i p_i) where operation i is applied, log Σ_i π_i (1 − p_i) where none is. Which operation it was that
        is not applied makes no difference to the image, so that its score would be noise and nothing else.
        """
        law = self._law(condition, len(draw))
        log_selection = law.selection.log_softmax(-1)
        applied = law.chosen(log_selection + F.logsigmoid(law.application), draw.choice)
        nothing = (log_selection + F.logsigmoid(-law.application)).logsumexp(-1, keepdim=True)
        return torch.where(draw.applied, applied, law.of_each(nothing).squeeze(-1)).sum(0)

    def with_prior(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The gradients of the parameters that learn, by name, with what a prior adds to them; here there is none."""
        return gradients

    def spec(self) -> PolicySpec:
        """The policy as it is now, as plain numbers in real units, for files and people."""
        stages = rounded_stages(self.operations, self.selection, self.application, self.magnitude)
        return PolicySpec(
            operations=self.operations, stages=stages, fill=self.fill, magnitude_jitter=self.magnitude_jitter
        )

    @classmethod
    def from_spec(cls, spec: PolicySpec, **settings: Any) -> "Policy":
        """A policy that starts where a spec stands and goes on learning.

        Probabilities of exactly 0 or 1 have no finite logit: they start at 10⁻⁶ from there.

        Args:
            spec: Stages, operations, fill, variation and numbers.
            **settings: What a spec does not hold: `temperature`, `application_temperature`, `seed`.
        """
        if spec.classes or spec.network is not None:
            other = "ClassPolicy" if spec.classes else "ImagePolicy"
            raise ValueError(
                f"this spec has more than one law: use {other}.from_spec(spec), or what is shared, "
                "Policy.from_spec(spec.of_class(None))"
            )
        policy = cls(len(spec.stages), **settings_of(spec), **settings)
        policy._start_at(spec)
        return policy

    def _start_at(self, spec: PolicySpec) -> None:
        with torch.no_grad():
            for shared, logits in zip(
                (self.selection_logits, self.application_logits, self.magnitude_logits),
                self._logits_of(spec.tensors()),
                strict=True,
            ):
                shared.copy_(logits)

    def _logits_of(self, numbers: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of selection, application and μ, `[..., n]` each, of the last for operations that have it."""
        selection, application, magnitude = numbers
        edge = 1e-6
        learned = magnitude[..., self.get_buffer("_with_magnitude")]
        return selection.clamp(min=edge).log(), application.logit(eps=edge), learned.logit(eps=edge)

    def _shared(self) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of selection, application and magnitude, `[K, 1, n]` each, of the last for operations that have it."""
        return (
            self.selection_logits.unsqueeze(1),
            self.application_logits.unsqueeze(1),
            self.magnitude_logits.unsqueeze(1),
        )

    def _law(self, condition: Tensor | None, count: int) -> PolicyTables:
        """By which `count` images are drawn; here the same for all."""
        selection, application, magnitude = self._shared()
        return PolicyTables(selection, application, self._spread(magnitude.sigmoid()))

    def _spread(self, magnitude: Tensor) -> Tensor:
        """From the operations that have a magnitude to all, zero for the others: `[..., m]` → `[..., n]`."""
        index = self.get_buffer("_with_magnitude").expand_as(magnitude)
        return magnitude.new_zeros(*magnitude.shape[:-1], len(self.operations)).scatter(-1, index, magnitude)

    def _check_parameters(self) -> None:
        if self.selection_logits.device.type != "cpu":
            return
        for name, parameter in (*self.named_parameters(), *self.named_buffers()):
            if not torch.isfinite(parameter).all():
                raise ValueError(
                    f"the policy's {name} are not finite ({parameter.detach().flatten().tolist()[:4]} …): an "
                    "update went wrong; load the last good state, and lower the policy's learning rate"
                )


def settings_of(spec: PolicySpec) -> dict[str, Any]:
    """What a spec says of the policy it is of, beside its stages and their numbers."""
    return {"operations": spec.operations, "fill": spec.fill, "magnitude_jitter": spec.magnitude_jitter}
