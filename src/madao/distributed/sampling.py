"""Draws for a part of a batch: every process draws for the whole batch, alike, and takes what belongs to its images.

So a batch is augmented in the same way however many processes share it, and a run may go on with another number.
"""

import dataclasses
from typing import Any

from torch import Tensor

from madao.distributed.group import ProcessGroup, Shard
from madao.policy import AugmentationPolicy, BaseAugmentation, BaseDraw, Draw


def shard_of(count: int, ranks: ProcessGroup) -> Shard:
    """The place of this process in a batch of `count`; the first ones have one more where it does not divide."""
    least, more = divmod(count, ranks.world)
    return Shard.of(ranks.rank, [least + (rank < more) for rank in range(ranks.world)])


def sample_shard(policy: AugmentationPolicy, images: Tensor, labels: Tensor, place: Shard, **settings: Any) -> Draw:
    """What a policy draws for the images at a place. Every process draws for all of them, and takes its own.

    Where the law depends on labels or images, the processes tell each other theirs.
    """
    condition = policy.condition(images, labels)
    if condition is not None:
        settings["condition"] = ProcessGroup.current().all_gather(condition, place)
    return policy.sample(_whole(images, place), **settings)[place.start : place.start + len(images)]


def sample_base_shard(standard: BaseAugmentation, images: Tensor, place: Shard) -> BaseDraw:
    """What standard augmentation draws for the images at a place."""
    draw = standard.sample(_whole(images, place))
    own = slice(place.start, place.start + len(images))
    fields = {field.name: getattr(draw, field.name) for field in dataclasses.fields(draw)}
    return dataclasses.replace(draw, **{name: value[own] for name, value in fields.items() if value is not None})


def _whole(images: Tensor, place: Shard) -> Tensor:
    """What stands for the images of all processes where only number and size matter. Takes no memory."""
    return images[:1].expand(place.total, *images.shape[1:])
