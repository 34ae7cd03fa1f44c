"""The inner step of a run, as fast as the settings and the device allow."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from madao.config.train_config import TrainConfig
from madao.data import Batches
from madao.distributed.sampling import shard_of
from madao.outer.cuda_graph import GraphPool
from madao.policy import AugmentationPolicy, BaseAugmentation
from madao.tasks import Task
from madao.training.builders.environment import Environment
from madao.training.inner_step import GraphedStep, InnerStep
from madao.training.outer_loop import OuterLoop

_COMPILE_FROM = 10_000
"""Steps of a run from which on compiling takes less time than it saves, at 4 ms a step."""


def build_inner_step(
    config: TrainConfig,
    environment: Environment,
    *,
    model: nn.Module,
    optimizer: Any,
    task: Task,
    base_augmentation: BaseAugmentation,
    policy: AugmentationPolicy | None,
    train_batches: Batches,
    outer_loop: OuterLoop | None,
    say: Callable[[str], None],
) -> InnerStep | GraphedStep:
    """Build the inner step; on a GPU compile it and record it, and the outer steps, as CUDA graphs.

    Args:
        config: The settings of the run.
        environment: Device, precision and processes.
        model: The model, wrapped for several processes.
        optimizer: The optimizer, wrapped in the same way.
        task: The task.
        base_augmentation: Crop, flip, normalise and Cutout.
        policy: The policy, if any.
        train_batches: The order of the training images.
        outer_loop: The outer loop, if the policy learns.
        say: Called with a line if a step cannot be recorded.
    """
    device, ranks = environment.device, environment.ranks
    on_gpu = device.type == "cuda"
    compile = config.speed.compile
    if compile is None:
        compile = len(train_batches) * config.epochs >= _COMPILE_FROM
    compile = on_gpu and compile
    compiled: Any = torch.compile(model, dynamic=False) if compile else model
    if compile:
        task.compile()
    step = InnerStep(
        compiled,
        task,
        backward=environment.fabric.backward,
        optimizer=optimizer,
        base_augmentation=base_augmentation,
        policy=policy,
        accumulate=config.accumulate,
        clip=config.optimizer.clip,
        shard=shard_of(train_batches.batch_size, ranks) if ranks.world > 1 else None,
        world=ranks.world,
    )
    if not on_gpu or not config.speed.graph or ranks.world > 1:
        return step
    memory = GraphPool(device)  # shared: inner and outer steps take turns
    if outer_loop is not None:
        outer_loop.outer.record(say, compile, memory)
    random = [base_augmentation, *([] if policy is None else [policy])]
    return GraphedStep(step, random, say, memory)
