"""The start of a run: its device, its precision and its processes."""

import dataclasses

import torch
from lightning_fabric import Fabric

from madao.config.train_config import TrainConfig
from madao.device.allocator import enable_expandable_segments
from madao.device.precision import set_precision
from madao.distributed.group import ProcessGroup
from madao.distributed.launch import launch
from madao.errors import UserError
from madao.text import counted
from madao.training.monitor.loggers.registry import check_logger


@dataclasses.dataclass(frozen=True)
class Environment:
    """The device, the precision and the processes of a run.

    Attributes:
        device: The device of this process.
        autocast: The half-precision dtype of forward passes, if any.
        fabric: Wraps the model and the optimizer for several processes.
        ranks: The processes that share the run.
    """

    device: torch.device
    autocast: torch.dtype | None
    fabric: Fabric
    ranks: ProcessGroup


def start_environment(config: TrainConfig) -> Environment:
    """Set torch's global switches and start the processes of a run."""
    check_logger(config.logger)
    device = pick_device(config.device)
    autocast = set_precision(config.precision, device)
    torch.backends.cudnn.benchmark = config.speed.benchmark
    enable_expandable_segments(device)
    fabric = launch(device, config.devices, config.num_nodes, autocast is not None)
    return Environment(fabric.device, autocast, fabric, ProcessGroup.current())


def pick_device(name: str) -> torch.device:
    """Return the device that a configuration names.

    Raises:
        UserError: There is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"`device` must be auto, cpu, cuda or cuda:1, got {name!r}") from None
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(
            f"`device` is {name}, but this machine has {counted(torch.cuda.device_count(), 'CUDA device')}; "
            "use `device=cpu`"
        )
    return device
