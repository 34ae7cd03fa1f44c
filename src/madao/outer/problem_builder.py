"""The inner and outer problem of one outer step, built from a policy, its draws and two batches."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from madao.distributed.group import ProcessGroup, Shard
from madao.distributed.sampling import sample_shard
from madao.hypergrad import Estimator, ForwardOverReverse, FunctionalModel, Problem, Solver
from madao.hypergrad.autodiff.functional_model import unwrap
from madao.hypergrad.flat_problem import FlatProblem
from madao.hypergrad.pytree import Vector
from madao.outer.compute_options import ComputeOptions
from madao.outer.example_losses import Loss, Microbatches, augmented_examples, validation_examples
from madao.outer.outer_step import OuterRequest, OuterShards
from madao.policy import Draw, Policy
from madao.policy.base_augmentation import normalise

SoftTargets = Callable[[Policy, Tensor, Sequence[Draw] | None], Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class ProblemBuilder:
    """A builder of the `Problem` of each outer step.

    Attributes:
        policy: The policy that learns.
        hyper: The parameters of the policy that learn.
        model: The model that is trained.
        losses: `losses(outputs, targets)`, one value an example.
        solver: The solver. Its class attributes say what it needs of the problem.
        estimator: The estimator. Its class attributes say what it needs of the problem.
        transform: The function between policy and model, for images of both kinds.
        weight_decay: λ of λ/2 ‖θ‖² in the training loss.
        views: Draws of the policy for each image. An example consists of all of its views.
        soft_targets: Targets that depend on the draws; see `PolicyOptimizer`.
        compute: Options of the outer step.
        ranks: The processes.
    """

    policy: Policy
    hyper: tuple[nn.Parameter, ...]
    model: nn.Module
    losses: Loss
    solver: Solver
    estimator: Estimator
    transform: Callable[[Tensor], Tensor] | None
    weight_decay: float
    views: int
    soft_targets: SoftTargets | None
    compute: ComputeOptions
    ranks: ProcessGroup

    def build(self, request: OuterRequest, tensors: Sequence[Tensor]) -> Problem:
        """Draw from the policy and return the problem.

        Args:
            request: The request of the outer step.
            tensors: Training images and targets, `request.rest` more tensors of the training batch, then validation
                images and targets.
        """
        options = self.compute
        images, targets, *rest = tensors[: 2 + request.rest]
        outer_images, outer_targets = tensors[2 + request.rest :]
        if options.draws > 1:
            repeated = (tensor.repeat_interleave(options.draws, 0) for tensor in (images, targets, *rest))
            images, targets, *rest = repeated
        images, transform = normalise(images), self._train_transform(request, rest)
        shards = request.shards or self.shards(len(images), len(outer_images))
        labels = targets if self.soft_targets is None else None

        inputs, log_prob = self._inputs(images, targets, shards, transform)
        plain: tuple[Tensor, ...] | None = None
        if self.estimator.may_use_plain:
            with torch.no_grad():
                unmoved = [] if self.soft_targets is None else [self.soft_targets(self.policy, targets, None)]
                plain = (transform(images), *unmoved)
        autocast = None if options.autocast is torch.float32 else options.autocast
        passes = Microbatches(self.losses, self.model, options.microbatch, autocast, request.seed)
        examples, curvature = augmented_examples(0, labels), None
        if self.solver.needs_independent_draw:
            again = self._independent_inputs(images, targets, shards.curvature, transform)
            others = augmented_examples(len(inputs), labels)
            curvature = passes.terms(options.inner_mode, others, shards.curvature)
            inputs, plain = (*inputs, *again), None if plain is None else (*plain, *again)
        elif options.curvature_batch is not None:
            curvature = passes.terms(options.inner_mode, examples, shards.curvature)
        held_out = validation_examples(outer_images, outer_targets, self.transform or _unchanged)
        return Problem(
            params=FunctionalModel(self.model).params,
            hyper=self.hyper,
            inputs=inputs,
            inner=passes.terms(options.inner_mode, examples, shards.train, shards.pathwise),
            outer=passes.terms(options.outer_mode, held_out, shards.validation),
            curvature=curvature,
            weight_decay=self.weight_decay,
            log_prob=log_prob,
            classes=labels,
            draws=options.draws,
            plain=plain,
            ranks=self.ranks,
        )

    def train_gradients(self, request: OuterRequest, tensors: Sequence[Tensor], count: int) -> Iterator[Vector]:
        """Yield training gradients in the model's parameters, each of other images of the batch under new draws.

        Args:
            request: The request of the outer step.
            tensors: As for `build`.
            count: The number of gradients.
        """
        train, held_out = tensors[: 2 + request.rest], [tensor[:1] for tensor in tensors[2 + request.rest :]]
        images = len(train[0])
        size = min(self.compute.curvature_batch or images, images)
        for number in range(count):
            part = [tensor.roll(-(number * images // count), 0)[:size] for tensor in train]
            problem = FlatProblem.of(self.build(dataclasses.replace(request, shards=None), [*part, *held_out]))
            yield problem.curvature_gradient(ForwardOverReverse() if self.compute.hvp is None else self.compute.hvp)

    def shards(self, train: int, validation: int) -> OuterShards:
        """Return the shards of this process, given its numbers of drawn images and of validation images.

        Each process takes an equal share of a curvature batch and of a pathwise batch.
        """
        parts = (self.compute.curvature_batch, self.compute.pathwise_batch)
        shares = [train if part is None else min(max(part // self.ranks.world, 1), train) for part in parts]
        device = next(unwrap(self.model).parameters()).device
        return OuterShards(*self.ranks.places([train, *shares, validation], device))

    def _train_transform(self, request: OuterRequest, rest: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
        own = request.transform
        if own is None:
            return self.transform or _unchanged
        return lambda images: own(images, *(tensor[: len(images)] for tensor in rest))

    def _inputs(
        self, images: Tensor, targets: Tensor, shards: OuterShards, transform: Callable[[Tensor], Tensor]
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the inputs of the training loss, with a graph to the policy, and the log-probability of the draws."""
        smooth = slice(len(shards.pathwise))
        with torch.enable_grad():
            draws = [sample_shard(self.policy, images, targets, shards.train, relaxed=True) for _ in range(self.views)]
            if self.estimator.scores_draws:
                draws = [draw.pathwise() for draw in draws]
            augmented, *moved = self._augmented(images[smooth], targets[smooth], [draw[smooth] for draw in draws])
            if len(augmented) < len(images):
                with torch.no_grad():
                    scored = slice(len(augmented), None)
                    hard = [draw[scored].detach() for draw in draws]
                    others = self._augmented(images[scored], targets[scored], hard)
                augmented, *moved = (torch.cat(pair) for pair in zip((augmented, *moved), others, strict=True))
            inputs = (transform(augmented), *moved)
            condition = self.policy.condition(images, targets)
            log_prob = functools.reduce(torch.add, [self.policy.effect_log_prob(draw, condition) for draw in draws])
        return inputs, log_prob

    def _independent_inputs(
        self, images: Tensor, targets: Tensor, shard: Shard, transform: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the first images under other draws: q must not depend on the draws whose influence it measures."""
        images, targets = images[: len(shard)], targets[: len(shard)]
        draws = [sample_shard(self.policy, images, targets, shard) for _ in range(self.views)]
        augmented, *moved = self._augmented(images, targets, draws)
        return transform(augmented), *moved

    def _augmented(self, images: Tensor, targets: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, ...]:
        """Return the augmented images, followed by the targets if these depend on the draws."""
        augmented = self.policy.augment(images, draws[0])
        if self.soft_targets is None:
            return (augmented,)
        return augmented, self.soft_targets(self.policy, targets, draws)


def _unchanged(images: Tensor) -> Tensor:
    return images
