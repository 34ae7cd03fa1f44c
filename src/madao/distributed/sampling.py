"""Draws for a part of a batch.

Every process makes the same draws for the whole batch and uses the draws of its images. So the number of processes does
not affect how a batch is augmented, and a run may be resumed with another number.
"""

from typing import Any

from torch import Tensor

from madao.distributed.group import ProcessGroup, Shard
from madao.policy import AugmentationPolicy, BaseAugmentation, BaseDraw, Draw


def shard_of(count: int, ranks: ProcessGroup) -> Shard:
    """Return the shard of this process of a batch. If the count does not divide, the first processes have one more."""
    least, more = divmod(count, ranks.world)
    return Shard.of(ranks.rank, [least + (rank < more) for rank in range(ranks.world)])


def sample_shard(policy: AugmentationPolicy, images: Tensor, labels: Tensor, place: Shard, **settings: Any) -> Draw:
    """Draw from a policy for the images of a shard. Processes exchange labels or images that the policy depends on."""
    condition = policy.condition(images, labels)
    if condition is not None:
        settings["condition"] = ProcessGroup.current().all_gather(condition, place)
    return policy.sample(_whole(images, place), **settings)[place.start : place.start + len(images)]


def sample_base_shard(standard: BaseAugmentation, images: Tensor, place: Shard) -> BaseDraw:
    """Draw from the base augmentation for the images of a shard."""
    draw = standard.sample(_whole(images, place))
    own = slice(place.start, place.start + len(images))
    return BaseDraw(**{name: value[own] for name, value in vars(draw).items() if value is not None})


def _whole(images: Tensor, place: Shard) -> Tensor:
    """Return a tensor of the shape of all processes' images. It takes no memory; its values have no meaning."""
    return images[:1].expand(place.total, *images.shape[1:])
