"""The start of a run's processes, and actions that the first process does for all."""

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

from madao.distributed.group import ProcessGroup
from madao.errors import SharedError, UserError
from madao.text import counted

PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others. One of them may be downloading or compiling."""


def launch(device: torch.device, devices: int, nodes: int, half: bool) -> Fabric:
    """Start the processes, in bfloat16 if `half`, and return their Fabric. Under `torchrun`, join its processes.

    Of several devices on a machine, each has one process, and only the type of `device` counts.
    """
    if "LOCAL_WORLD_SIZE" in os.environ:  # torchrun knows
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    several = devices * nodes > 1
    if several and device.index is not None:
        raise UserError(f"`device={device}` names one device, but `devices` is {devices}; use `device={device.type}`")
    if device.type == "cuda" and devices > torch.cuda.device_count():
        found = counted(torch.cuda.device_count(), "CUDA device")
        raise UserError(f"`devices` is {devices}, but this machine has {found}; lower it")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it only repeats the settings
    fabric = Fabric(
        accelerator=device.type,
        devices=[device.index] if device.index is not None else devices,
        num_nodes=nodes,
        strategy=DDPStrategy(timeout=PATIENCE) if several else "auto",
        precision="bf16-mixed" if half else "32-true",
    )
    fabric.launch()
    if several and dist.get_backend() == "gloo":  # Fabric ends NCCL itself
        atexit.register(_end_gloo)
    return fabric


def _end_gloo() -> None:
    """Join the threads of gloo. A thread that frees a tensor while the interpreter exits aborts the process."""
    gc.collect()  # unreachable models keep them alive
    if dist.is_initialized():
        dist.destroy_process_group()


def convert_sync_batchnorm(network: nn.Module, device: torch.device, twice: bool = False) -> nn.Module:
    """Return the network with batch statistics of all processes; raise if outer steps differentiate it `twice`."""
    if device.type != "cuda":
        raise SharedError("`sync_batch_norm` needs GPUs; on CPUs use a model with GroupNorm")
    if twice:
        raise SharedError("`sync_batch_norm` has no second derivative; use `outer.model_mode=eval`")
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    return converted


def rank_zero_first(ranks: ProcessGroup, action: Callable[[], Any], again: bool = False) -> Any:
    """Return the result of an action of the first process, in all processes; if it fails, all raise `SharedError`.

    If `again`, the others repeat the action afterwards, in place of receiving its result, which may be large.
    """
    result = None
    if ranks.is_first:
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
        return result if ranks.is_first else action()
    return told
