"""The optimizer of a policy, for any training loop."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.distributed.group import ProcessGroup
from madao.hypergrad import (
    Deflated,
    Estimator,
    FunctionalModel,
    Influence,
    Relaxed,
    RunningSignal,
    Solver,
    Stats,
    Traced,
)
from madao.hypergrad.autodiff.fallback import Fallback
from madao.hypergrad.hypergradient import PendingHypergradient
from madao.hypergrad.pytree import Vector
from madao.outer.compute_options import ComputeOptions, check_counts
from madao.outer.cuda_graph import GraphPool
from madao.outer.example_losses import Loss, per_example
from madao.outer.gathering import Batch, GatheredImages, ValidationBatches, describe_batch
from madao.outer.outer_gradient import OuterGradient
from madao.outer.outer_step import OuterRequest, OuterStep
from madao.outer.problem_builder import ProblemBuilder, SoftTargets
from madao.outer.recorded_gradient import recorded_gradient
from madao.outer.schedule import OuterSchedule, choose_schedule, default_optimizer, open_lr
from madao.policy import Policy

_LOGGER = logging.getLogger("madao")

_SEEDS_APART = 1_000_003
"""The difference between the dropout seeds of two calls: a prime, so that microbatches do not repeat them."""


class PolicyOptimizer:
    """An optimizer that learns a policy while a model trains. Call `step` after each step of the model's optimizer.

    In an outer step it draws from the policy for training images, estimates the gradient of the validation loss through
    the trained weights, and updates the policy. The weights, gradients, modes and running statistics of the model do
    not change, nor does the random state of torch.

    By default a budget decides when outer steps come and on how many images. These are gathered over training batches
    and over the batches of the validation loader. With `every`, an outer step takes the batch that was just trained on
    and one batch of the validation loader, as in the paper.

    Args:
        policy: The policy that learns.
        model: The model that is trained. Compiled and data-parallel models are unwrapped.
        loss: A function `loss(outputs, targets)`. It has a parameter `reduction`, as in `torch.nn.functional`, or an
            attribute `reduction`, as a module, or returns one value per example. `PolicyOptimizer` uses the mean over
            examples, even if class weights or `ignore_index` make the training loss another average.
        every: Inner steps from one outer step to the next, s of the paper. By default as the budget allows.
        warmup: Calls at the start during which the policy does not change. By default a fifth of `total_steps`, or 0 if
            they are not known or `every` is given.
        budget: The part of training's work that outer steps may cost. They may always cost as much as a CPU computes in
            about 15 seconds.
        total_steps: Inner steps of the whole training, if they are known, for which a better plan can be made.
        train_images: Training images of an outer step, of all processes together. By default as the budget allows; with
            `every`, those of the batch that was just trained on.
        validation_images: Validation images of an outer step, if it receives a loader. By default as the budget allows;
            with `every`, those of one batch.
        optimizer: The optimizer of the policy's parameters. By default Adam without momentum, with a learning rate that
            suits the number of outer steps; with `every`, RMSprop with learning rate 1e-2, as in the paper.
        transform: The function between policy and model, applied to training and validation images: normalising. It
            must treat each image independently.
        solver: The approximation of the inverse Hessian. By default `Deflated()`, which needs no products with the
            Hessian and remembers training gradients; `Neumann(steps=5, scale=1e-3)` is the paper's.
        estimator: The estimator of the gradient in the policy's parameters. By default `Influence(LeaveOneOut())`;
            `Relaxed()` is the paper's, and the only one for `Unrolled`.
        weight_decay: The weight decay of the model's optimizer, to include it in the training loss; 0 otherwise.
        clip: The largest norm of the policy's gradient; a longer one is scaled down.
        seed: The seed of dropout in outer steps.
        views: Draws of the policy for each image. The model sees the image under the first draw.
        soft_targets: `soft_targets(policy, targets, draws)`, for targets that depend on the draws, such as masks. It
            returns floating-point targets, with a gradient to the policy if they have one. `draws` has one `Draw` for
            each view, or is None for images that are not augmented. Validation targets go to the loss unchanged.
        compute: Options of outer steps: microbatches, mixed precision, draws for each image and more.

    Attributes:
        schedule: When outer steps are due; None before the first call of `step` if the budget decides.
        calls: Inner steps so far.
        updates: Outer steps that updated the policy.
        skipped: Outer steps whose gradient was unusable.
        primes: Whether the first outer step fills the memory of the solver, with gradients of parts of its images. It
            does if the budget decides. Otherwise each outer step adds one gradient.
        sign: Maps the number of an update to the factor of its gradient. −1 raises the validation loss, for controls.

    Example:
        >>> policy, model = madao.Policy(), nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
        >>> outer = madao.PolicyOptimizer(policy, model, loss=F.cross_entropy, every=1)
        >>> batch = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])
        >>> outer.step(batch, validation=[batch]).applied
        True
    """

    def __init__(
        self,
        policy: Policy,
        model: nn.Module,
        loss: Loss = F.cross_entropy,
        *,
        every: int | None = None,
        warmup: int | None = None,
        budget: float = 0.1,
        total_steps: int | None = None,
        train_images: int | None = None,
        validation_images: int | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        solver: Solver | None = None,
        estimator: Estimator | None = None,
        weight_decay: float = 0.0,
        clip: float | None = None,
        seed: int = 0,
        views: int = 1,
        soft_targets: SoftTargets | None = None,
        compute: ComputeOptions | None = None,
    ) -> None:
        given = {"every": every, "total_steps": total_steps}
        given |= {"train_images": train_images, "validation_images": validation_images}
        check_counts(views=views, **{name: value for name, value in given.items() if value is not None})
        check_counts(0, warmup=warmup or 0)
        if not 0 < budget < math.inf:
            raise ValueError(f"budget must be above 0 and finite, got {budget!r}; without one, give every")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be above 0, got {clip!r}")
        self.policy, self.model, self.every, self.warmup = policy, model, every, warmup or 0
        self.budget, self.total_steps = budget, total_steps
        self._own_optimizer, self._warmup = optimizer is None, warmup
        sizes = {"train_batch_size": train_images, "batch_size": validation_images}
        self._images = {name: size for name, size in sizes.items() if size is not None}
        self.schedule: OuterSchedule | None = None
        if every is not None:
            self.schedule = OuterSchedule(every, self.warmup, train_images, validation_images)
        self.optimizer = default_optimizer(policy, planned=every is None) if optimizer is None else optimizer
        solver = Deflated() if solver is None else solver
        if estimator is None:
            estimator = Relaxed() if solver.differentiates_path else Influence()
        compute = ComputeOptions() if compute is None else compute
        compute = compute if estimator.scores_draws else dataclasses.replace(compute, pathwise_batch=None)
        if isinstance(compute.hvp, Traced):
            raise ValueError("Traced() is compared with what hvp says; leave hvp alone and call record(print)")
        learned = {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if not held & {id(parameter) for parameter in learned.values()}:
            raise ValueError(
                "the optimizer holds no parameter of the policy that learns; build it on policy.parameters()"
            )
        self.clip, self.seed, self.ranks = clip, seed, ProcessGroup.current()
        self.calls = self.updates = self.skipped = 0
        self.primes = every is None
        self.sign: Callable[[int], float] = lambda _: 1.0
        self.builder = ProblemBuilder(
            policy=policy,
            hyper=tuple(learned.values()),
            model=model,
            losses=per_example(loss),
            solver=solver,
            estimator=estimator,
            transform=transform,
            weight_decay=weight_decay,
            views=views,
            soft_targets=soft_targets,
            compute=compute,
            ranks=self.ranks,
        )
        say = _LOGGER.warning if self.ranks.is_first else _LOGGER.debug
        self.reference = OuterGradient(self.builder, Fallback(say) if compute.hvp is None else compute.hvp)
        self._estimate: Callable[[OuterRequest, tuple[Tensor, ...]], PendingHypergradient] = self.reference
        self._learned = learned
        self._recording: tuple[Any, ...] | None = None
        self._gathered: GatheredImages | None = None
        self._last = 0
        self._signal, self._validation = RunningSignal(), ValidationBatches()
        self._solver_state: Any = None

    @property
    def solver(self) -> Solver:
        """The solver. It cannot be replaced: its state belongs to it."""
        return self.builder.solver

    @property
    def compute(self) -> ComputeOptions:
        """How outer steps are computed. It cannot be replaced, since steps may have been recorded."""
        return self.builder.compute

    def due(self) -> bool:
        """Return whether the next call of `step` or `tick` leads to an outer step."""
        schedule = self.schedule
        return schedule is not None and schedule.is_due(self.calls + 1, self.updates + self.skipped, self._last)

    def plan(self, images: Tensor, count: int | None = None) -> OuterSchedule:
        """Decide when outer steps come and on how many images, if that is open; return it. `step` calls this.

        Args:
            images: Images of the training loop, whose shape matters alone.
            count: Images of an inner step, of all processes together. By default these.
        """
        if self.schedule is not None:
            return self.schedule
        count = len(images) * self.ranks.world if count is None else count
        chosen = choose_schedule(self.builder, self.budget, count, images, self.total_steps, self._warmup, self._images)
        self.schedule, self.warmup = chosen.schedule, chosen.schedule.warmup
        if chosen.lr is not None and self._own_optimizer:
            for group in self.optimizer.param_groups:
                group["lr"] = chosen.lr
        self.builder = dataclasses.replace(self.builder, compute=chosen.compute)
        self.reference = OuterGradient(self.builder, self.reference.hvp)
        self._estimate = self.reference
        if self._recording is not None:
            self.record(*self._recording)
        if self.ranks.is_first:
            _LOGGER.log(logging.INFO if chosen.learns else logging.WARNING, chosen.description)
        return self.schedule

    def tick(self) -> bool:
        """Count an inner step, and return whether an outer step is due: a call of `update`.

        Loops that prepare images for outer steps call `tick` and `update` instead of `step`. Without `every` they call
        `plan` first.
        """
        if self.schedule is None:
            raise ValueError("nothing says when outer steps are due; call plan(images) before, or give every")
        due = self.due()
        self.calls += 1
        if due:
            self._last = self.calls
        return due

    def step(
        self,
        train_batch: tuple[Tensor, ...],
        validation: Batch | Iterable[Batch],
        train_transform: Callable[..., Tensor] | None = None,
    ) -> OuterStep | None:
        """Count an inner step, and update the policy if an outer step is due.

        Args:
            train_batch: Images in [0, 1] or uint8, before the policy; targets, which are class numbers if the policy
                has classes; and the other tensors that `train_transform` takes.
            validation: A batch of images and targets, or a loader of batches, which restarts when it ends.
            train_transform: The function between policy and model for training images, if it does more than
                `transform`. It is called as `train_transform(images, *others)` with the other tensors of `train_batch`,
                such as the places of Cutout.

        Returns:
            The outer step, or None if none was due.
        """
        if not isinstance(train_batch, tuple | list):
            raise TypeError(f"train_batch must be (images, targets), got {describe_batch(train_batch)}")
        schedule = self.plan(train_batch[0])
        if schedule.train_images is not None:
            if self._gathered is None:
                self._gathered = GatheredImages(-(-schedule.train_images // self.ranks.world))
            self._gathered.add(train_batch)
        if not self.tick():
            return None
        return self.update(
            train_batch if self._gathered is None else self._gathered.take(), validation, train_transform
        )

    def update(
        self,
        train_batch: tuple[Tensor, ...],
        validation: Batch | Iterable[Batch],
        train_transform: Callable[..., Tensor] | None = None,
    ) -> OuterStep:
        """Perform an outer step now; arguments as of `step`. The policy does not change if its gradient is unusable."""
        gradients, stats = self.gradient(train_batch, validation, train_transform)
        if not stats.usable:
            self.skipped += 1
            log = _LOGGER.warning if self.ranks.is_first else _LOGGER.debug
            log("outer step at call %d skipped (%d so far): %s", self.calls, self.skipped, stats.status.value)
            return OuterStep(stats, applied=False)
        self._signal.update(gradients)
        self._apply(gradients, stats.grad_norm)
        kinds = (name.removesuffix("_logits") for name in self._learned)
        return OuterStep(stats, applied=True, signal=dict(zip(kinds, self._signal.ratios() or (), strict=False)))

    def gradient(
        self,
        train_batch: tuple[Tensor, ...],
        validation: Batch | Iterable[Batch],
        train_transform: Callable[..., Tensor] | None = None,
    ) -> tuple[Vector, Stats]:
        """Return the gradient in the learned parameters of the policy, and its health; arguments as of `step`.

        The policy does not change. The next call overwrites the tensors.
        """
        every = self.compute.check_every if self.solver.checkable else 0
        check = every > 0 and (self.updates + self.skipped) % every == 0
        state = self.solver.prepare(self._solver_state, FunctionalModel(self.model).params, check)
        held_out = self._validation.next(validation, self._validation_count)
        tensors = tuple(tensor.to(self._device) for tensor in (*train_batch, *held_out))
        shards = None
        if self.ranks.world > 1:
            shards = self.builder.shards(len(tensors[0]) * self.compute.draws, len(tensors[-1]))
        seed = self.seed + _SEEDS_APART * self.calls
        request = OuterRequest(train_transform, len(train_batch) - 2, check, state, shards, seed)
        if self.primes and self.updates + self.skipped == 0:
            for gradient in self.builder.train_gradients(request, tensors, self.solver.num_remembered):
                self.solver.remember(state, gradient)
        found = self._estimate(request, tensors)
        stats = found.read()
        self._solver_state = self.solver.update(state, found.carry, stats)
        return found.grads, stats

    def record(
        self,
        say: Callable[[str], None],
        compile: bool = False,
        memory: GraphPool | None = None,
        compare: bool = True,
    ) -> None:
        """Run outer steps on a GPU as CUDA graphs of traced code.

        Transforms must draw no random numbers and must be the same functions at every call. The traced gradient is
        compared with the reference once, on a few images. If they differ, or if recording fails, steps run without a
        graph. So do steps of several processes, and microbatches with a solver that multiplies by the Hessian.

        Args:
            say: Called with one line if recording fails.
            compile: Whether the traced code is compiled.
            memory: The memory that the graphs share with others.
            compare: Whether the traced gradient is compared with the reference. Only measurements skip this.
        """
        recorded = recorded_gradient(self.reference, say, compile, memory, compare)
        self._recording = say, compile, memory, compare
        if recorded is not None:
            self._estimate = recorded

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and the states of optimizer and solver. The policy saves its own state."""
        counters = {name: getattr(self, name) for name in ("calls", "updates", "skipped")} | {"last": self._last}
        if self._gathered is not None:
            counters["gathered"] = self._gathered.state_dict()
        state = {"optimizer": self.optimizer.state_dict(), "signal": self._signal.state_dict()}
        # Every file has these two names, whichever solver wrote it.
        remembered = {"recent": None, "products": None} | self.solver.state_dict(self._solver_state)
        return {**counters, **state, **remembered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        for name in ("calls", "updates", "skipped"):
            setattr(self, name, int(state[name]))
        self._last = int(state.get("last", 0))
        if "gathered" in state:
            self._gathered = GatheredImages.restored(state["gathered"], self._device)
        self.optimizer.load_state_dict(state["optimizer"])
        if "signal" in state:
            self._signal.load_state_dict(state["signal"], self._device)
        self._solver_state = self.solver.load_state(state, self._device)

    @property
    def _validation_count(self) -> int | None:
        """Validation images of an outer step for this process; None for one batch."""
        count = None if self.schedule is None else self.schedule.validation_images
        return None if count is None else -(-count // self.ranks.world)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _apply(self, gradients: Sequence[Tensor], norm: float) -> None:
        scale = self.clip / norm if self.clip is not None and norm > self.clip else 1.0
        scale *= self.sign(self.updates)
        found = {name: gradient.mul(scale) for name, gradient in zip(self._learned, gradients, strict=True)}
        parameters = self._learned.values()
        for parameter, gradient in zip(parameters, self.policy.with_prior(found).values(), strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        if self._own_optimizer and self.schedule is not None and self.schedule.every is None:
            for group in self.optimizer.param_groups:
                group["lr"] = open_lr(self.updates + self.skipped)
        self.optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        self.updates += 1
