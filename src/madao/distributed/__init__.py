"""Runs that several processes share."""

from madao.distributed.group import ProcessGroup, Shard

__all__ = ["ProcessGroup", "Shard"]
