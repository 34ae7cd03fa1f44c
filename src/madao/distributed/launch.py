"""Several processes, one training: how they begin, and what the first one does for all."""

import atexit
import gc
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn

from madao.config.train_config import TrainConfig
from madao.distributed.group import ProcessGroup
from madao.errors import SharedError, UserError
from madao.text import counted

PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others, of which one may be downloading or compiling."""


def launch(device: torch.device, devices: int, nodes: int, half: bool) -> Fabric:
    """Fabric, with as many processes as asked for, or as `torchrun` has started.

    Args:
        device: Of a run on one device; else only its type counts.
        devices: Processes on this machine, one a device.
        nodes: Machines.
        half: Whether forward passes are in bfloat16.
    """
    if "LOCAL_WORLD_SIZE" in os.environ:  # torchrun knows
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    several = devices * nodes > 1
    if several and device.index is not None:
        raise UserError(f"--device {device} names one device, but --devices is {devices}; use --device {device.type}")
    if device.type == "cuda" and devices > torch.cuda.device_count():
        raise UserError(f"--devices {devices}: this machine has {counted(torch.cuda.device_count(), 'CUDA device')}")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # what it does is what was asked for
    fabric = Fabric(
        accelerator=device.type,
        devices=[device.index] if device.index is not None else devices,
        num_nodes=nodes,
        strategy=DDPStrategy(timeout=PATIENCE) if several else "auto",
        precision="bf16-mixed" if half else "32-true",
    )
    fabric.launch()
    if several and dist.get_backend() == "gloo":  # Fabric ends NCCL's
        atexit.register(_end_gloo)
    return fabric


def _end_gloo() -> None:
    """Join the threads that move tensors: one that drops its last while the interpreter ends aborts the process."""
    gc.collect()  # a model that is no longer used holds on to them
    if dist.is_initialized():
        dist.destroy_process_group()


def synchronised(network: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """The network with batch statistics taken over all processes."""
    if device.type != "cuda":
        raise SharedError("--sync_batch_norm needs GPUs; on CPUs use a model with GroupNorm")
    if config.augment.method == "learned" and config.outer.model_mode == "train":
        raise SharedError("--sync_batch_norm does not go with --outer.model_mode train, as it has no second derivative")
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    return converted


def rank_zero_first(ranks: ProcessGroup, action: Callable[[], Any], again: bool = False) -> Any:
    """What an action of the first process returns, on all of them. Where it raises an error, all do.

    Args:
        ranks: The processes.
        action: What the first one does, while the others wait.
        again: Whether the others then do it too, rather than being told its result: it may be large.
    """
    result = None
    if ranks.first:
        try:
            result = action()
        except Exception as error:
            ranks.broadcast_object((None, str(error)))
            if isinstance(error, UserError) and ranks.world > 1:
                raise SharedError(str(error)) from None
            raise
    told, message = ranks.broadcast_object((None if again else result, None))
    if message is not None:
        raise SharedError(message)
    if again:
        return result if ranks.first else action()
    return told
