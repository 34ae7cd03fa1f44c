"""Several processes that share one training."""

from madao.distributed.group import ProcessGroup, Shard

__all__ = ["ProcessGroup", "Shard"]
