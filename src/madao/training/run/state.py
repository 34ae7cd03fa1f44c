"""The parts of a run, and the contents of its checkpoints (`Run.state_dict`)."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

from madao.config.train_config import TrainConfig
from madao.data import Batches
from madao.distributed.group import ProcessGroup
from madao.errors import UserError
from madao.policy import AugmentationPolicy, BaseAugmentation
from madao.tasks import Task
from madao.training.ema import WeightAverage
from madao.training.inner_step import GraphedStep, InnerStep
from madao.training.monitor.console import Console
from madao.training.monitor.metrics import EpochMetrics
from madao.training.monitor.profiler import Profiler
from madao.training.outer_loop import OuterLoop
from madao.training.run.contents import check_optimizer, check_state, check_structure, fitting
from madao.training.run.directory import RunDirectory
from madao.training.splits import Splits

FORMAT = 1


@dataclasses.dataclass(kw_only=True)
class Run:
    """The parts of a run, as `build_run` makes them and a `Trainer` uses them.

    Attributes:
        config: The settings.
        model_name: The name of the model, which the settings may leave open.
        notes: Lines for people about the images and the model.
        device: The device of this process.
        autocast: The half-precision dtype of forward passes, if any.
        ranks: The processes that share the run.
        directory: The files of the run.
        splits: The images; those in memory are on the device.
        train_batches: The order of the training images.
        network: The model.
        model: The network that training steps call: data-parallel if there are several processes.
        optimizer: The optimizer of the network.
        ema: The average of the network's weights, if any. It is evaluated instead of the network.
        policy: The policy between base augmentation's crop and normalising, if any.
        base_augmentation: Crop, flip, normalise and Cutout.
        task: The task.
        inner_step: Trains the weights on a batch.
        outer_loop: Updates the policy, if it is learned.
        metrics: Loss and error of the epoch so far.
        profiler: Time and memory of the epoch so far.
        console: Shows progress.
        epoch: The number of complete epochs.
        step: The number of steps of the optimizer.
        best: The lowest validation error so far and its epoch.
        validation_error: The latest validation error.
    """

    config: TrainConfig
    model_name: str
    notes: list[str]
    device: torch.device
    autocast: torch.dtype | None
    ranks: ProcessGroup
    directory: RunDirectory
    splits: Splits
    train_batches: Batches
    network: nn.Module
    model: nn.Module
    optimizer: torch.optim.Optimizer
    ema: WeightAverage | None
    policy: AugmentationPolicy | None
    base_augmentation: BaseAugmentation
    task: Task
    inner_step: InnerStep | GraphedStep
    outer_loop: OuterLoop | None
    metrics: EpochMetrics
    profiler: Profiler
    console: Console
    epoch: int = 0
    step: int = 0
    best: tuple[float, int] | None = None
    validation_error: float | None = None

    @property
    def steps_per_epoch(self) -> int:
        """The number of optimizer steps in an epoch."""
        return len(self.train_batches)

    @property
    def evaluated(self) -> nn.Module:
        """The module to evaluate and save: the average of the weights if there is one, else the network."""
        return self.network if self.ema is None else self.ema.module

    def weights(self) -> dict[str, Any]:
        """Return the content of the best checkpoint: enough to evaluate the model."""
        return {
            "model": self.evaluated.state_dict(),
            "classes": list(self.splits.classes),
            "epoch": self.epoch,
            "validation_error": self.validation_error,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the content of a checkpoint: all that later steps depend on. Epoch and step locate the next batch."""
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        state: dict[str, Any] = {
            "format": FORMAT,
            "epoch": self.epoch,
            "step": self.step,
            "best": self.best,
            "validation_error": self.validation_error,
            "classes": list(self.splits.classes),
            "data": self.splits.fingerprint(),
            "random": random,
        }
        state |= {name: None if part is None else part.state_dict() for name, part in self._parts().items()}
        if self.epoch == self.config.epochs and self.outer_loop is not None:
            # Gradients several times as large as the model, for steps that do not come any more.
            state["learning"]["recent"] = None
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state.

        Raises:
            UserError: The state is of another version of madao, of another model, or of a run on other images.
        """
        path = self.directory.checkpoints.folder
        with fitting(path):
            self._check(state, path)
            self._restore(state)

    def _restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.step, self.best = state["epoch"], state["step"], state["best"]
        self.validation_error = state["validation_error"]
        for name, part in self._parts().items():
            # Checkpoints of before these parts had a state hold none for them.
            if part is not None and (name not in ("task", "meter") or state.get(name) is not None):
                part.load_state_dict(state[name])
        if state.get("meter") is None:
            self.profiler.skip(self.metrics.images)
        for group in self.optimizer.param_groups:
            # Of this device, not of the one where the run began.
            group |= {name: self.device.type == "cuda" for name in ("fused", "capturable") if name in group}
        if not self.ranks.is_first:  # the random state is that of the first process
            torch.manual_seed(self.config.seed + 7919 * self.ranks.rank + self.step)
            return
        torch.set_rng_state(state["random"]["cpu"])
        if self.device.type == "cuda" and "cuda" in state["random"]:
            torch.cuda.set_rng_state(state["random"]["cuda"], self.device)

    def _parts(self) -> dict[str, Any]:
        """Return the parts that have a state, by their names in checkpoints. Old runs need these names."""
        return {
            "model": self.network,
            "optimizer": self.optimizer,
            "standard": self.base_augmentation,
            "totals": self.metrics,
            "meter": self.profiler,
            "task": self.task,
            "policy": self.policy,
            "learning": self.outer_loop,
            "average": self.ema,
        }

    def _check(self, state: Any, path: Path) -> None:
        """Raise unless the state is that of a run on these images, and fits the parts of this one."""
        if isinstance(state, dict) and state.get("format") != FORMAT:
            raise UserError(
                f"the checkpoint in {self.directory.path} has the format {state.get('format')!r}, this version of "
                f"madao reads {FORMAT}; resume it with the version that wrote it"
            )
        epochs = self.config.epochs
        check_state(state, path, epochs, epochs * self.steps_per_epoch)
        here = self.splits.fingerprint()
        for name, before in state["data"].items():
            if here.get(name) != before:
                raise UserError(
                    f"the images are not those that the run in {self.directory.path} began with: {name} was "
                    f"{before!r} and is {here.get(name)!r}; bring them back, or begin a new run in another `out`"
                )
        for name, part in self._parts().items():
            if part is not None and state.get(name) is not None:
                check_structure(state[name], part.state_dict(), name, path)
        check_optimizer(state["optimizer"], self.optimizer, "optimizer", path)
        if self.outer_loop is not None:
            check_optimizer(state["learning"]["optimizer"], self.outer_loop.outer.optimizer, "learning.optimizer", path)
