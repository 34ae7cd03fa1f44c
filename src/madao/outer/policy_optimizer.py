"""The outer step: a policy learns from the validation loss, within anybody's training loop."""

import copy
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.device.precision import full_precision
from madao.distributed.group import ProcessGroup
from madao.distributed.sampling import sample_shard
from madao.hypergrad import (
    Deflated,
    Estimator,
    FunctionalModel,
    Influence,
    Problem,
    Relaxed,
    Solver,
    Stats,
    Traced,
)
from madao.hypergrad.autodiff.functional_model import Mode, unwrap
from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.hypergradient import PendingHypergradient, pending_hypergradient
from madao.hypergrad.pytree import Vector
from madao.hypergrad.snr import RunningSignal
from madao.outer.cuda_graph import CudaGraphRunner, GraphPool
from madao.outer.cycle import Batch, ValidationBatches
from madao.outer.example_losses import Loss, Microbatches, augmented_examples, per_example, validation_examples
from madao.outer.gradient_check import check_traced
from madao.outer.outer_step import OuterRequest, OuterShards, OuterStep
from madao.policy import Draw, Policy
from madao.policy.base_augmentation import normalise

_CHECKED = 16  # images on which traced code is compared with the reference

_LOGGER = logging.getLogger("madao")

Along = Callable[[Policy, Tensor, Sequence[Draw] | None], Tensor]


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
        solver: How the inverse Hessian is approximated. By default `Deflated()`, which needs no products, and goes on
            from outer step to outer step; `Neumann(steps=5, scale=1e-3)` is the paper's.
        estimator: How that becomes a gradient of the policy: `Influence(…)`, by default with the baseline
            `LeaveOneOut()`; or `Relaxed()`, the paper's.
        hvp: How second derivatives are taken. By default `ForwardOverReverse()`.
        transform: What stands between policy and model, for each image by itself, those of validation too: normalising.
        inner_mode: The model's mode in the training loss. In `"eval"` an image's influence is its own; `"train"`, that
            of the inner steps, is the authors' choice.
        outer_mode: The model's mode in the validation loss. `"eval"` is the authors' choice.
        weight_decay: That of the model's optimizer, where it is to count as part of the training loss.
        clip: Longest gradient of the policy that is used as it is; a longer one is shortened.
        microbatch: Most examples in one pass, to save memory. Changes results where examples of a batch depend on each
            other, as under BatchNorm in training mode.
        curvature_batch: How many examples of the training batch curvature is taken over. By default all.
        pathwise_batch: With `Influence`: how many of them the magnitudes' derivative is taken over; the others are only
            scored, which takes less time and memory. By default all.
        draws: How many times the policy draws for each training image, for the baseline `SameExample`.
        autocast: Half-precision dtype of the forward passes, if any.
        check_every: The residual of the linear system is measured in one of so many outer steps, and with it which
            powers of the Hessian `Neumann(tolerance=…)` can do without until the next; 0 for never.
        seed: Which random numbers dropout sees.
        views: How many times the policy draws for an image. What is drawn first makes the model's input.
        along: `along(policy, targets, draws)`, where targets depend on the draws, one for each view, as masks do:
            those of the augmented images, floating point, with a gradient to the policy where they have one; of the
            images as they are where `draws` is None. Validation targets are given to the loss as they come.

    Attributes:
        sign: What the gradient of an update is multiplied by, by the update's number; −1 climbs, for controls.
    """

    def __init__(
        self,
        policy: Policy,
        model: nn.Module,
        loss: Loss = F.cross_entropy,
        every: int = 30,
        warmup: int = 0,
        optimizer: torch.optim.Optimizer | None = None,
        solver: Solver | None = None,
        estimator: Estimator | None = None,
        hvp: SecondOrder | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        inner_mode: Mode = "eval",
        outer_mode: Mode = "eval",
        weight_decay: float = 0.0,
        clip: float | None = None,
        microbatch: int | None = None,
        curvature_batch: int | None = None,
        pathwise_batch: int | None = None,
        draws: int = 1,
        autocast: torch.dtype | None = None,
        check_every: int = 10,
        seed: int = 0,
        views: int = 1,
        soft_targets: Along | None = None,
    ) -> None:
        sizes = {"microbatch": microbatch, "curvature_batch": curvature_batch, "pathwise_batch": pathwise_batch}
        counts = {"every": every, "warmup": warmup, "check_every": check_every, "draws": draws, "views": views}
        for name, value in (counts | {name: size for name, size in sizes.items() if size is not None}).items():
            least = 0 if name in ("warmup", "check_every") else 1
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be above 0, got {clip!r}")
        self.policy, self.model, self.every, self.warmup = policy, model, every, warmup
        self.optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-2) if optimizer is None else optimizer
        self.solver = Deflated() if solver is None else solver
        if estimator is None:
            estimator = Relaxed() if self.solver.differentiates_path else Influence()
        self.estimator = estimator
        if isinstance(hvp, Traced):
            raise ValueError("Traced() is compared with what hvp says; leave hvp alone and call record(print)")
        self.hvp, self.transform, self.weight_decay, self.clip = hvp, transform, weight_decay, clip
        self.inner_mode, self.outer_mode, self.autocast, self.seed = inner_mode, outer_mode, autocast, seed
        self.microbatch, self.curvature_batch, self.check_every = microbatch, curvature_batch, check_every
        self.draws, self.pathwise_batch = draws, pathwise_batch if estimator.scores_draws else None
        self._params = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if not self._params or not held & {id(p) for p in self._params}:
            raise ValueError(
                "the optimizer holds no parameter of the policy that learns; build it on policy.parameters()"
            )
        self._names = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
        self._signal = RunningSignal()
        self._losses = per_example(loss)
        self.views, self.soft_targets = views, soft_targets
        self.calls = self.updates = self.skipped = 0
        self.sign: Callable[[int], float] = lambda _: 1.0
        self._validation = ValidationBatches()
        self._solver_state: Any = None
        self.ranks = ProcessGroup.current()
        self._estimate: Callable[[OuterRequest, tuple[Tensor, ...]], PendingHypergradient] = functools.partial(
            self._estimated, self.hvp
        )

    def due(self) -> bool:
        """Whether the next call of `step` is an outer step."""
        return self.calls >= self.warmup and (self.calls + 1) % self.every == 0

    def step(
        self,
        train_batch: tuple[Tensor, ...],
        validation: Batch | Iterable[Batch],
        train_transform: Callable[..., Tensor] | None = None,
    ) -> OuterStep | None:
        """Count an inner step; on every s-th, update the policy.

        Args:
            train_batch: Images in [0, 1] or uint8, not augmented by the policy, targets (classes by number where the
                policy has classes), and what else of this batch `train_transform` wants.
            validation: A batch of the same kind, or a loader of them, which is begun anew whenever it ends.
            train_transform: What stands between policy and model for training images, where that is more than
                `transform`: called as `train_transform(images, *rest)` with the rest of `train_batch`, the places of
                its Cutout, say.

        Returns:
            What was done, or None where this was not the time for an outer step.
        """
        due = self.due()
        self.calls += 1
        if not due:
            return None
        gradients, stats = self.gradient(train_batch, validation, train_transform)
        if not stats.usable:
            self.skipped += 1
            log = _LOGGER.warning if self.ranks.first else _LOGGER.debug
            log("outer step at call %d skipped (%d so far): %s", self.calls, self.skipped, stats.status.value)
            return OuterStep(stats, applied=False)
        self._signal.update(gradients)
        self._update(gradients, stats.grad_norm)
        kinds = (name.removesuffix("_logits") for name in self._names)
        return OuterStep(stats, applied=True, signal=dict(zip(kinds, self._signal.ratios() or (), strict=False)))

    def gradient(
        self,
        train_batch: tuple[Tensor, ...],
        validation: Batch | Iterable[Batch],
        train_transform: Callable[..., Tensor] | None = None,
    ) -> tuple[Vector, Stats]:
        """The gradient of the policy's parameters that learn, and its health; arguments as of `step`.

        The policy stays as it is. The tensors are overwritten by the next call.
        """
        solver, often = self.solver, self.check_every if self.solver.checkable else 0
        check = often > 0 and (self.updates + self.skipped) % often == 0
        self._solver_state = solver.prepare(self._solver_state, FunctionalModel(self.model).params, check)
        device = next(unwrap(self.model).parameters()).device
        tensors = tuple(tensor.to(device) for tensor in (*train_batch, *self._validation.next(validation)))
        places = self._places(len(tensors[0]) * self.draws, len(tensors[-1])) if self.ranks.world > 1 else None
        found = self._estimate(
            OuterRequest(train_transform, len(train_batch) - 2, check, self._solver_state, places), tensors
        )
        stats = found.read()
        self._solver_state = solver.update(self._solver_state, found.carry, stats)
        return found.grads, stats

    def _places(self, train: int, validation: int) -> OuterShards:
        """Of so many rows and images among those of all processes; of a part each of them takes its share."""
        parts = (self.curvature_batch, self.pathwise_batch)
        shares = [train if part is None else min(max(part // self.ranks.world, 1), train) for part in parts]
        device = next(unwrap(self.model).parameters()).device
        return OuterShards(*self.ranks.places([train, *shares, validation], device))

    def record(self, say: Callable[[str], None], compile: bool = False, memory: GraphPool | None = None) -> None:
        """Let outer steps on a GPU be CUDA graphs of traced code.

        For transforms that draw no random numbers and are the same functions at every call. The traced gradient is
        compared with the reference once, on a few images. What differs there, or cannot be recorded, runs as it did;
        so do steps of several processes, and microbatches of a solver that takes products with a Hessian: a graph would
        hold what each of them keeps for the next product, all at once.

        Args:
            say: Where it says that it could not be recorded.
            compile: Whether the traced code is compiled.
            memory: What the graphs share with others.
        """
        if self.ranks.world > 1 or (self.microbatch is not None and not self.solver.capturable):
            return
        traced, checked = Traced(compile), False

        def estimated(asked: OuterRequest, tensors: tuple[Tensor, ...]) -> PendingHypergradient:
            nonlocal checked
            if not checked:
                self._check_traced(asked, tensors)
                checked = True
            return self._estimated(traced, asked, tensors)

        reference = functools.partial(self._estimated, self.hvp)
        self._estimate = CudaGraphRunner(estimated, "outer steps", [self.policy], say, memory, reference, before=1)

    def _check_traced(self, asked: "OuterRequest", tensors: tuple[Tensor, ...]) -> None:
        """Raise unless traced code has the reference's gradient on a few images, some of them only scored."""
        few = tuple(tensor[:_CHECKED].clone() for tensor in tensors)
        state, small = self.policy.get_extra_state(), copy.copy(self)
        small.autocast = None
        if self.pathwise_batch is not None:
            small.pathwise_batch = min(self.pathwise_batch, max(len(few[0]) // 2, 1))
        small.solver = self.solver.for_comparison()

        def gradient(hvp: SecondOrder | None) -> Vector:
            self.policy.set_extra_state(state)
            return small._estimated(hvp, asked, few).grads

        try:
            with full_precision():
                check_traced(gradient(Traced()), lambda: gradient(self.hvp), unwrap(self.model))
        finally:
            self.policy.set_extra_state(state)

    def _update(self, gradients: Sequence[Tensor], norm: float) -> None:
        scale = self.clip / norm if self.clip is not None and norm > self.clip else 1.0
        scale *= self.sign(self.updates)
        found = {name: gradient.mul(scale) for name, gradient in zip(self._names, gradients, strict=True)}
        for parameter, gradient in zip(self._params, self.policy.with_prior(found).values(), strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        self.optimizer.step()
        for parameter in self._params:
            parameter.grad = None
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Counters, the optimizer's state and the solver's; the policy's own state is the policy's to save."""
        counters = {name: getattr(self, name) for name in ("calls", "updates", "skipped")}
        state = {"optimizer": self.optimizer.state_dict(), "signal": self._signal.state_dict()}
        # Every file has these two names, whichever solver wrote it.
        remembered = {"recent": None, "products": None} | self.solver.state_dict(self._solver_state)
        return {**counters, **state, **remembered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for name in ("calls", "updates", "skipped"):
            setattr(self, name, int(state[name]))
        self.optimizer.load_state_dict(state["optimizer"])
        device = next(unwrap(self.model).parameters()).device
        if "signal" in state:
            self._signal.load_state_dict(state["signal"], device)
        self._solver_state = self.solver.load_state(state, device)

    def _estimated(
        self, hvp: SecondOrder | None, asked: "OuterRequest", tensors: tuple[Tensor, ...]
    ) -> PendingHypergradient:
        """The hypergradient. Depends on nothing that changes but its arguments, the model and the policy."""
        images, targets, *rest = tensors[: 2 + asked.rest]
        outer_images, outer_targets = tensors[2 + asked.rest :]
        if self.draws > 1:
            images, *rest = (tensor.repeat_interleave(self.draws, 0) for tensor in (images, *rest))
            if self.soft_targets is not None:
                targets = targets.repeat_interleave(self.draws, 0)
        transform = self.transform or (lambda images: images)
        if asked.transform is None:
            inner_transform = transform
        else:
            own = asked.transform

            def inner_transform(augmented: Tensor) -> Tensor:
                return own(augmented, *(tensor[: len(augmented)] for tensor in rest))

        floats, labels = normalise(images), targets
        if self.draws > 1 and self.soft_targets is None:
            labels = targets.repeat_interleave(self.draws, 0)
        places = asked.places or self._places(len(images), len(outer_images))
        place, curved, smooth = places.train, places.curved, slice(len(places.pathwise))
        with torch.enable_grad():
            draws = [sample_shard(self.policy, floats, labels, place, relaxed=True) for _ in range(self.views)]
            if self.estimator.scores_draws:
                draws = [draw.pathwise() for draw in draws]
            augmented, *moved = self._augmented(floats[smooth], targets[smooth], [draw[smooth] for draw in draws])
            if len(augmented) < len(floats):
                with torch.no_grad():
                    scored = slice(len(augmented), None)
                    hard = [draw[scored].detach() for draw in draws]
                    others = self._augmented(floats[scored], targets[scored], hard)
                augmented, *moved = (torch.cat(pair) for pair in zip((augmented, *moved), others, strict=True))
            inputs: tuple[Tensor, ...] = (inner_transform(augmented), *moved)
            seen = self.policy.condition(floats, labels)
            log_prob = functools.reduce(torch.add, [self.policy.effect_log_prob(draw, seen) for draw in draws])
        params = FunctionalModel(self.model).params
        plain: tuple[Tensor, ...] | None = None
        if self.estimator.may_use_plain:
            with torch.no_grad():
                unmoved = [] if self.soft_targets is None else [self.soft_targets(self.policy, targets, None)]
                plain = (inner_transform(floats), *unmoved)
        passes = self._passes()
        fixed = labels if self.soft_targets is None else None
        inner, curvature = augmented_examples(0, fixed), None
        if self.solver.needs_independent_draw:
            # By another draw: q must know nothing of the draw whose influence is measured along it.
            few = floats[: len(curved)]
            other = [sample_shard(self.policy, few, labels[: len(few)], curved) for _ in range(self.views)]
            again, *again_moved = self._augmented(few, targets[: len(few)], other)
            added, behind = (inner_transform(again), *again_moved), augmented_examples(len(inputs), fixed)
            inputs, plain = (*inputs, *added), None if plain is None else (*plain, *added)
            curvature = passes.terms(self.inner_mode, behind, curved)
        elif self.curvature_batch is not None:
            curvature = passes.terms(self.inner_mode, inner, curved)
        outer = validation_examples(outer_images, outer_targets, transform)
        problem = Problem(
            params=params,
            hyper=tuple(self._params),
            inputs=inputs,
            inner=passes.terms(self.inner_mode, inner, place, places.pathwise),
            outer=passes.terms(self.outer_mode, outer, places.validation),
            curvature=curvature,
            weight_decay=self.weight_decay,
            log_prob=log_prob,
            classes=labels if self.soft_targets is None else None,
            draws=self.draws,
            plain=plain,
            ranks=self.ranks,
        )
        return pending_hypergradient(problem, self.solver, hvp, self.estimator, asked.check, asked.state, keep=False)

    def _passes(self) -> Microbatches:
        seed = self.seed + 1_000_003 * self.calls
        return Microbatches(self._losses, self.model, self.microbatch, self.autocast, seed)

    def _augmented(self, images: Tensor, targets: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, ...]:
        """The images, and behind them the targets where these depend on the draws."""
        augmented = self.policy.augment(images, draws[0])
        return (
            (augmented,) if self.soft_targets is None else (augmented, self.soft_targets(self.policy, targets, draws))
        )
