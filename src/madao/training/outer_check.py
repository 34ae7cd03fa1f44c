"""A first outer step of a run, on noise, before training."""

import torch

from madao.data import Images
from madao.distributed.group import Shard
from madao.outer.derivative_check import check_derivatives
from madao.training.inner_step import crop_and_flip, crop_batch
from madao.training.outer_loop import OuterLoop

_IMAGES = 4


def check_outer_step(outer_loop: OuterLoop, images: Images, device: torch.device, parts: int = 1) -> list[str]:
    """Try an outer step on a few images of noise, so that no model fails after training for a while.

    Nothing that training depends on changes: weights, buffers, policy and random states stay.

    Args:
        outer_loop: The outer loop.
        images: The training images, which give the shape and the targets.
        device: The device of the model.
        parts: The number of parts into which the model divides a batch.

    Returns:
        Lines for people.

    Raises:
        SharedError: The model has no outer steps.
    """
    task, base = outer_loop.task, outer_loop.base_augmentation
    count = _IMAGES * parts
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (count, *images.shape), generator=generator, dtype=torch.uint8).to(device)
    targets = images.targets[torch.arange(count) % len(images)].to(device)
    random_state, shard = base.get_extra_state(), Shard.alone(count)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            draw, cropped, train_targets = crop_batch(task, base, noise, targets, shard)
            validation = task.outer(base, noise, targets, lambda: crop_and_flip(base, noise, shard)[1])
            train = cropped, train_targets, draw.hole_y, draw.hole_x
            return check_derivatives(outer_loop.outer, train, validation, base.after_policy)
        finally:
            base.set_extra_state(random_state)
