"""The outer step: a policy learns from the validation loss, within anybody's training loop."""

import copy
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.hypergrad import (
    Amortized,
    Influence,
    Neumann,
    Problem,
    PureModel,
    Relaxed,
    Stats,
    Term,
    Unaugmented,
    hypergradient,
)
from madao.hypergrad.estimators import Estimator
from madao.hypergrad.hvp import SecondOrder
from madao.hypergrad.hypergradient import LinearSolver
from madao.hypergrad.pure import Mode, original, raised
from madao.hypergrad.unrolled import Unrolled
from madao.policy import Policy
from madao.policy.standard import normalise

_LOGGER = logging.getLogger("madao")

Batch = tuple[Tensor, Tensor]
Loss = Callable[..., Tensor]


@dataclasses.dataclass(frozen=True)
class OuterStep:
    """What one outer step did.

    Attributes:
        stats: The health of the hypergradient.
        applied: Whether the policy was updated. It is not where the hypergradient diverges or is not finite.
    """

    stats: Stats
    applied: bool


class PolicyOptimizer:
    """Learns a policy while a model trains: call `step` after each step of the model's own optimizer.

    On every `every`-th call it draws from the policy for the training batch, estimates the gradient of the validation
    loss through the trained weights, and updates the policy. Neither the model nor its gradients, modes, statistics or
    random state are touched.

    Args:
        policy: What learns.
        model: What is trained; compiled and data-parallel models are looked inside of.
        loss: `loss(outputs, targets)`: a function that takes `reduction="none"`, as those of `torch.nn.functional` do,
            or a module with a `reduction`. Its mean over examples counts, also where class weights or `ignore_index`
            make the training loss another average.
        every: Inner steps between two outer steps, s of the paper.
        warmup: Calls at the start during which the policy stays as it is.
        optimizer: Of the policy's parameters. By default RMSprop with learning rate 1e-2, the paper's.
        solver: How the inverse Hessian is approximated. By default `Neumann(steps=5, scale=1e-3)`, the paper's.
            `Amortized()` goes on from outer step to outer step.
        estimator: How that becomes a gradient of the policy: `Influence(…)`, by default with the baseline
            `Unaugmented()`; or `Relaxed()`, the paper's.
        hvp: How second derivatives are taken. By default `ForwardOverReverse()`.
        transform: What stands between policy and model, for training and validation images alike: normalising, say.
        inner_mode: The model's mode in the training loss. `"train"`, that of the inner steps, is the authors' choice.
        outer_mode: The model's mode in the validation loss. `"eval"` is the authors' choice.
        weight_decay: That of the model's optimizer, where it is to count as part of the training loss.
        clip: Longest gradient of the policy that is used as it is; a longer one is shortened.
        microbatch: Most examples in one pass, to save memory. Changes results where examples of a batch depend on each
            other, as under BatchNorm in training mode.
        curvature_batch: How many examples of the training batch the Hessian is taken over. By default all.
        autocast: Half-precision dtype of the forward passes, if any.
        check_every: The residual of the linear system is measured in one of so many outer steps; 0 for never.
        seed: Which random numbers dropout sees.
    """

    def __init__(
        self,
        policy: Policy,
        model: nn.Module,
        loss: Loss = F.cross_entropy,
        every: int = 30,
        warmup: int = 0,
        optimizer: torch.optim.Optimizer | None = None,
        solver: LinearSolver | Unrolled | None = None,
        estimator: Estimator | None = None,
        hvp: SecondOrder | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        inner_mode: Mode = "train",
        outer_mode: Mode = "eval",
        weight_decay: float = 0.0,
        clip: float | None = None,
        microbatch: int | None = None,
        curvature_batch: int | None = None,
        autocast: torch.dtype | None = None,
        check_every: int = 10,
        seed: int = 0,
    ) -> None:
        for name, value, least in (("every", every, 1), ("warmup", warmup, 0), ("check_every", check_every, 0)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name, size in (("microbatch", microbatch), ("curvature_batch", curvature_batch)):
            if size is not None and size < 1:
                raise ValueError(f"{name} must be at least 1, got {size!r}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be above 0, got {clip!r}")
        self.policy, self.model, self.every, self.warmup = policy, model, every, warmup
        self.optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-2) if optimizer is None else optimizer
        self.solver = Neumann() if solver is None else solver
        if estimator is None:
            estimator = Relaxed() if isinstance(self.solver, Unrolled) else Influence(Unaugmented())
        self.estimator = estimator
        self.hvp, self.transform, self.weight_decay, self.clip = hvp, transform, weight_decay, clip
        self.inner_mode, self.outer_mode, self.autocast, self.seed = inner_mode, outer_mode, autocast, seed
        self.microbatch, self.curvature_batch, self.check_every = microbatch, curvature_batch, check_every
        self._params = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if not self._params or not held & {id(p) for p in self._params}:
            raise ValueError(
                "the optimizer holds no parameter of the policy that learns; build it on policy.parameters()"
            )
        self._losses = _per_example(loss)
        self.calls = self.updates = self.skipped = 0
        self._validation: tuple[Any, Iterator[Batch]] | None = None
        self._solution: dict[str, Tensor] | None = None

    def due(self) -> bool:
        """Whether the next call of `step` is an outer step."""
        return self.calls >= self.warmup and (self.calls + 1) % self.every == 0

    def step(
        self,
        train_batch: Batch,
        validation: Batch | Iterable[Batch],
        train_transform: Callable[[Tensor], Tensor] | None = None,
    ) -> OuterStep | None:
        """Count an inner step; on every s-th, update the policy.

        Args:
            train_batch: Images in [0, 1] or uint8, not augmented by the policy, and targets.
            validation: A batch of the same kind, or a loader of them, which is begun anew whenever it ends.
            train_transform: What stands between policy and model for these training images, where that is more than
                `transform`: with the Cutout of this batch, say.

        Returns:
            What was done, or None where this was not the time for an outer step.
        """
        due = self.due()
        self.calls += 1
        if not due:
            return None
        problem = self._problem(train_batch, self._next_validation(validation), train_transform)
        outer_steps = self.updates + self.skipped
        check = self.check_every > 0 and outer_steps % self.check_every == 0
        result = hypergradient(problem, self.solver, self.hvp, self.estimator, check=check, start=self._solution)
        if isinstance(self.solver, Amortized):
            self._solution = result.solution if result.stats.usable else None  # from where it runs away it starts anew
        if not result.stats.usable:
            self.skipped += 1
            _LOGGER.warning(
                "outer step at call %d skipped (%d so far): %s", self.calls, self.skipped, result.stats.status.value
            )
            return OuterStep(result.stats, applied=False)
        scale = 1.0
        if self.clip is not None and result.stats.grad_norm > self.clip:
            scale = self.clip / result.stats.grad_norm
        for parameter, gradient in zip(self._params, result.grads, strict=True):
            parameter.grad = gradient.mul(scale).to(parameter.dtype)
        self.optimizer.step()
        for parameter in self._params:
            parameter.grad = None
        self.updates += 1
        return OuterStep(result.stats, applied=True)

    def state_dict(self) -> dict[str, Any]:
        """Counters, the optimizer's state and the solver's; the policy's own state is the policy's to save."""
        counters = {name: getattr(self, name) for name in ("calls", "updates", "skipped")}
        return {**counters, "optimizer": self.optimizer.state_dict(), "solution": self._solution}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for name in ("calls", "updates", "skipped"):
            setattr(self, name, int(state[name]))
        self.optimizer.load_state_dict(state["optimizer"])
        device = next(original(self.model).parameters()).device
        solution = state.get("solution")
        self._solution = None if solution is None else {name: value.to(device) for name, value in solution.items()}

    def _problem(
        self, train_batch: Batch, validation_batch: Batch, train_transform: Callable[[Tensor], Tensor] | None
    ) -> Problem:
        device = next(original(self.model).parameters()).device
        (images, targets), (outer_images, outer_targets) = (
            (normalise(batch[0].to(device)), batch[1].to(device)) for batch in (train_batch, validation_batch)
        )
        transform = self.transform or (lambda value: value)
        inner_transform = train_transform or transform

        def model(mode: Mode, part: slice) -> PureModel:
            """Each microbatch has a dropout mask of its own."""
            return PureModel(self.model, mode, self.seed + 1_000_003 * self.calls + part.start, self.autocast)

        with torch.enable_grad():
            draw = self.policy.sample(images, relaxed=True)
            if isinstance(self.estimator, Influence):
                draw = draw.pathwise()
            inputs = inner_transform(self.policy.apply(images, draw))
            log_prob = self.policy.log_prob(draw)
        plain, outer_inputs = inner_transform(images), transform(outer_images)

        # In float32, as mixed-precision training has the logits for its loss.
        def inner_loss(part: slice, params: dict[str, Tensor], augmented: Tensor) -> Tensor:
            return self._losses(raised(model(self.inner_mode, part)(params, augmented[part])), targets[part])

        def outer_loss(part: slice, params: dict[str, Tensor], _: Tensor) -> Tensor:
            return self._losses(raised(model(self.outer_mode, part)(params, outer_inputs[part])), outer_targets[part])

        def plain_loss(params: dict[str, Tensor]) -> Tensor:
            return torch.cat([inner_loss(part, params, plain) for part in self._parts(len(images))])

        return Problem(
            params=PureModel(self.model).params,
            hyper=tuple(self._params),
            inputs=inputs,
            inner=self._terms(inner_loss, len(images)),
            outer=self._terms(outer_loss, len(outer_images)),
            curvature=self._terms(inner_loss, min(self.curvature_batch, len(images))) if self.curvature_batch else None,
            weight_decay=self.weight_decay,
            log_prob=log_prob,
            classes=targets,
            plain=plain_loss,
        )

    def _terms(self, loss: Callable[[slice, Any, Any], Tensor], count: int) -> list[Term]:
        """The loss over `count` examples as microbatches."""
        parts = self._parts(count)
        return [Term(functools.partial(loss, part), (part.stop - part.start) / max(count, 1)) for part in parts]

    def _parts(self, count: int) -> list[slice]:
        size = self.microbatch or max(count, 1)
        return [slice(start, min(start + size, count)) for start in range(0, max(count, 1), size)]

    def _next_validation(self, validation: Batch | Iterable[Batch]) -> Batch:
        if isinstance(validation, tuple | list) and len(validation) == 2 and isinstance(validation[0], Tensor):
            return validation[0], validation[1]
        if self._validation is None or self._validation[0] is not validation:
            self._validation = (validation, iter(validation))
        batch = next(self._validation[1], None)
        if batch is None:
            self._validation = (validation, iter(validation))
            batch = next(self._validation[1], None)
        if batch is None:
            raise ValueError("the validation loader gave no batch; it is empty, or an iterator that has ended")
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(
                f"a validation batch must be (images, targets), got {type(batch).__name__} of {len(batch)}"
            )
        return batch[0], batch[1]


def _per_example(loss: Loss) -> Loss:
    """The loss without its reduction."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        unreduced = copy.deepcopy(loss)
        setattr(unreduced, "reduction", "none")  # noqa: B010 -- nn.Module types its attributes as tensors and modules
        return functools.partial(_mean_over_all_but_examples, unreduced)
    try:
        if "reduction" in inspect.signature(loss).parameters:
            return functools.partial(_mean_over_all_but_examples, functools.partial(loss, reduction="none"))
    except ValueError:  # a built-in without a signature
        pass
    return loss


def _mean_over_all_but_examples(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    values = loss(outputs, targets)
    return values.flatten(1).mean(1) if values.ndim > 1 else values
