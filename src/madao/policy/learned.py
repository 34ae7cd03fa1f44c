"""The policy of the paper: selection, application and magnitude are learned."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.ops import PAPER, Operation, choose
from madao.ops.geometric import Fill
from madao.policy import sampling
from madao.policy.base import AugmentationPolicy
from madao.policy.draw import Draw
from madao.policy.policy_tables import PolicyTables
from madao.policy.spec import PolicySpec, check_magnitude_jitter
from madao.policy.stages import rounded_stages

START_LOGIT = 0.5
"""Initial logit of application probabilities and magnitudes."""

START = torch.tensor(START_LOGIT).sigmoid().item()
"""Initial application probability and magnitude: sigmoid(0.5) = 0.62."""


class Policy(AugmentationPolicy):
    """A policy of K stages that learns selection, probability and magnitude: 78 parameters at the defaults.

    Each image draws in each stage, independently: operation i ~ Categorical(π), applied with probability p_i, at
    magnitude μ_i, with a fair sign. π = softmax(`selection_logits`), p = sigmoid(`application_logits`) and
    μ = sigmoid(`magnitude_logits`). Images always come from such a hard draw, in training and in use. With a
    magnitude jitter v, which the paper does not have, the magnitude of a draw is μ_i (1 − v U), U uniform in [0, 1).

    Two methods give a gradient. `sample(relaxed=True)` returns a draw with the paper's relaxed derivatives:
    Gumbel-softmax through u_i / stop_gradient(u_i), a relaxed Bernoulli, and the operation's own derivative in the
    magnitude. `effect_log_prob(draw)` serves score-function estimators. `policy(images)` uses neither, so the
    training loss has no gradient to the policy.

    Args:
        stages: Number of operations in a row, K.
        operations: Operations to choose from, by name or as `madao.ops.Operation`.
        limits: Strongest value of some operations in real units: `{"Rotate": 10}` for at most 10 degrees.
        exclude: Names of operations to leave out: `["Invert"]`.
        fill: Colour that geometric operations leave outside the image, in [0, 1].
        temperature: τ of the relaxed selection.
        application_temperature: Temperature of the relaxed Bernoulli.
        magnitude_jitter: v in [0, 1]: 0 for the paper's policy, 1 for any magnitude up to μ.
        init_magnitude: Initial μ of every operation, between 0 and 1. By default the paper's, sigmoid(0.5) = 0.62.
        seed: Seed of the policy's own random numbers.

    Example:
        >>> policy = madao.Policy(stages=2, exclude=["Invert"])
        >>> augmented = policy(images)
    """

    conditional_on: ClassVar[Literal["none", "class", "image"]] = "none"
    """Whether probabilities depend on the class, on the image, or on neither."""

    def __init__(
        self,
        stages: int = 2,
        operations: Iterable[str | Operation] = PAPER,
        *,
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
        for name, value in (("temperature", temperature), ("application_temperature", application_temperature)):
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value!r}")
        self.temperature = temperature
        self.application_temperature = application_temperature
        self.magnitude_jitter = check_magnitude_jitter(magnitude_jitter)
        if init_magnitude is not None and not 0 < init_magnitude < 1:
            raise ValueError(
                f"init_magnitude must lie between 0 and 1, where a magnitude has a gradient, got {init_magnitude!r}"
            )
        count = len(self.operations)
        with_magnitude = [i for i, operation in enumerate(self.operations) if operation.has_magnitude]
        self.selection_logits = nn.Parameter(torch.zeros(stages, count))
        self.application_logits = nn.Parameter(torch.full((stages, count), START_LOGIT))
        logit = START_LOGIT if init_magnitude is None else math.log(init_magnitude / (1 - init_magnitude))
        self.magnitude_logits = nn.Parameter(torch.full((stages, len(with_magnitude)), logit))
        self.register_buffer("_with_magnitude", torch.tensor(with_magnitude, dtype=torch.int64), persistent=False)

    @property
    def selection(self) -> Tensor:
        """π, `[K, n]`. Each row sums to 1."""
        return self.selection_logits.softmax(-1)

    @property
    def application(self) -> Tensor:
        """p, `[K, n]`."""
        return self.application_logits.sigmoid()

    @property
    def magnitude(self) -> Tensor:
        """μ, `[K, n]`. Zero for operations without a magnitude."""
        return self._spread(self.magnitude_logits.sigmoid())

    def sample(
        self,
        images: Tensor,
        generator: torch.Generator | None = None,
        relaxed: bool = False,
        *,
        condition: Tensor | None = None,
    ) -> Draw:
        """Draw for a batch, as every policy does. If `relaxed`, the same draw carries gradients to the parameters."""
        generator = self.generator(images.device) if generator is None else generator
        self._check_parameters()
        if condition is None:
            condition = self.condition(images)
        with torch.set_grad_enabled(relaxed and torch.is_grad_enabled()):
            # At least float32: half precision would change the probabilities.
            shape, dtype = (self.stages, len(images)), torch.promote_types(self.selection_logits.dtype, torch.float32)
            noise = sampling.gumbel_noise((*shape, len(self.operations)), generator, dtype)
            tables = self._tables(condition, len(images))
            logits = tables.of_each(tables.selection).to(dtype)
            choice = sampling.categorical(logits, noise)
            switch = sampling.logistic_noise(shape, generator, dtype)
            gate = tables.chosen(tables.application, choice).to(dtype)
            sign = sampling.fair_signs(shape, generator, dtype)
            magnitude = tables.chosen(tables.magnitude, choice).to(dtype)
            return Draw(
                choice=choice,
                applied=sampling.bernoulli(gate, switch),
                magnitude=sampling.jittered(magnitude, self.magnitude_jitter, generator),
                sign=sign,
                weight=sampling.relaxed_weight(logits, noise, choice, self.temperature) if relaxed else None,
                gate=sampling.relaxed_gate(gate, switch, self.application_temperature) if relaxed else None,
            )

    def tables_of(self, images: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return π, p and μ of each image, `[K, B, n]` each."""
        tables = self._tables(self.condition(images, labels), len(images))
        selection, application, magnitude = tables.of_images(len(images))
        return selection.softmax(-1), application.sigmoid(), magnitude

    def log_prob(self, draw: Draw, condition: Tensor | None = None) -> Tensor:
        """Return log P of each image's discrete choices, `[B]`: Σ_k log π_i + log p_i, or log(1 − p_i)."""
        tables = self._tables(condition, len(draw))
        log_selection = tables.chosen(tables.selection.log_softmax(-1), draw.choice)
        gate = tables.chosen(tables.application, draw.choice)
        return (log_selection + F.logsigmoid(torch.where(draw.applied, gate, -gate))).sum(0)

    def effect_log_prob(self, draw: Draw, condition: Tensor | None = None) -> Tensor:
        """Return log P of the visible effect of a draw on each image, `[B]`, for score-function estimators.

        This is Σ_k log(π_i p_i) if operation i is applied, and log Σ_i π_i (1 − p_i) if none is. The image does
        not depend on which operation was drawn and skipped, so the score of that choice would only add noise.
        """
        tables = self._tables(condition, len(draw))
        log_selection = tables.selection.log_softmax(-1)
        applied = tables.chosen(log_selection + F.logsigmoid(tables.application), draw.choice)
        nothing = (log_selection + F.logsigmoid(-tables.application)).logsumexp(-1, keepdim=True)
        return torch.where(draw.applied, applied, tables.of_each(nothing).squeeze(-1)).sum(0)

    def with_prior(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the parameters' gradients by name with the gradient of the policy's prior added. `Policy` has none."""
        return gradients

    def spec(self) -> PolicySpec:
        """Return the policy's present numbers in real units, for files and people."""
        stages = rounded_stages(self.operations, self.selection, self.application, self.magnitude)
        return PolicySpec(
            operations=self.operations, stages=stages, fill=self.fill, magnitude_jitter=self.magnitude_jitter
        )

    def _repr_html_(self) -> str:
        return self.spec()._repr_html_()

    @classmethod
    def from_spec(cls, spec: PolicySpec, **settings: Any) -> Self:
        """Return a policy that continues to learn from the numbers of a spec.

        Probabilities of exactly 0 or 1 have no finite logit; they start 10⁻⁶ away from it. `settings` are arguments
        that a spec does not hold: `temperature`, `application_temperature`, `seed`.
        """
        if spec.conditional_on != cls.conditional_on:
            raise ValueError(
                f"{cls.__name__} has conditional_on={cls.conditional_on!r}, this spec {spec.conditional_on!r}; call "
                "from_spec of Policy ('none'), ClassPolicy ('class') or ImagePolicy ('image'), or use the part that "
                "all images share, Policy.from_spec(spec.of_class(None))"
            )
        policy = cls(**cls._arguments_of(spec), **settings)
        policy._start_at(spec)
        return policy

    @classmethod
    def _arguments_of(cls, spec: PolicySpec) -> dict[str, Any]:
        """Return the arguments of the constructor that a spec holds."""
        return {
            "stages": len(spec.stages),
            "operations": spec.operations,
            "fill": spec.fill,
            "magnitude_jitter": spec.magnitude_jitter,
        }

    def _start_at(self, spec: PolicySpec) -> None:
        shared = self.selection_logits, self.application_logits, self.magnitude_logits
        with torch.no_grad():
            for parameter, logits in zip(shared, self._logits_of(spec.tensors()), strict=True):
                parameter.copy_(logits)

    def _logits_of(self, numbers: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of selection, application and μ, `[..., n]`; μ only of operations that have one."""
        selection, application, magnitude = numbers
        edge = 1e-6
        learned = magnitude[..., self.get_buffer("_with_magnitude")]
        return selection.clamp(min=edge).log(), application.logit(eps=edge), learned.logit(eps=edge)

    def _tables(self, condition: Tensor | None, count: int) -> PolicyTables:
        """Return the tables that `count` images are drawn by."""
        (selection, application, magnitude), rows = self._logits(condition, count)
        return PolicyTables(selection, application, self._spread(magnitude.sigmoid()), rows)

    def _logits(self, condition: Tensor | None, count: int) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Return the logits as tables `[K, R, n]`, and the row of each image; None for one row for all."""
        return self._shared(), None

    def _shared(self) -> tuple[Tensor, ...]:
        """Return the logits of selection, application and magnitude as tables of one row, `[K, 1, n]`."""
        logits = self.selection_logits, self.application_logits, self.magnitude_logits
        return tuple(each.unsqueeze(1) for each in logits)

    def _spread(self, magnitude: Tensor) -> Tensor:
        """Fill in zeros for operations without a magnitude: `[..., m]` → `[..., n]`."""
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
