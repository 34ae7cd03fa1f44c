"""A Lightning callback that learns a policy while a `LightningModule` trains."""

import functools
import importlib
import math
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from madao.integrations.batch_access import Key
from madao.integrations.loop_adapter import LoopAdapter
from madao.outer import PolicyOptimizer
from madao.outer.example_losses import Loss
from madao.policy import Policy

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer, strategies
else:
    _PACKAGES = ("lightning.pytorch", "pytorch_lightning")
    _installed = [name for name in _PACKAGES if find_spec(name.split(".")[0]) is not None]
    if not _installed:
        raise ImportError(
            "madao.integrations.lightning needs lightning, which is not installed: pip install 'madao[lightning]'"
        )
    # Both are often installed. The Trainer of the program is from the one that is imported already.
    _chosen = next((name for name in _installed if name in sys.modules), _installed[0])
    Callback = importlib.import_module(_chosen).Callback
    strategies = importlib.import_module(f"{_chosen}.strategies")

__all__ = ["PolicyCallback"]

_WITHOUT_AUTOCAST = ("32-true", "16-mixed")
"""Precisions with outer steps in float32. In float16 their second derivatives would underflow."""


class PolicyCallback(Callback):
    """A callback that learns a policy: `Trainer(callbacks=[PolicyCallback(policy)])`.

    The policy augments the images of training batches right before `training_step`. Batches of validation, test and
    sanity check stay unchanged. After each optimizer step the callback passes the original training images, and
    validation images of the Trainer's own loader, to `PolicyOptimizer`. With accumulated gradients the images are those
    of all accumulated batches. After each outer step it logs the mean selection probability of each operation as
    `policy/Rotate`, and `policy/gradient_norm`, `policy/validation_loss` and `policy/signal_…`.

    Your program must meet three conditions:

    - Batches hold images as floats in [0, 1], `[B, C, H, W]`, and targets: a tuple, list, mapping, or object with
      attributes. So normalise in `forward`, not in the data set. If `training_step` normalises in place of `forward`,
      give the same function as `transform`: outer steps call `forward(transform(images))`.
    - `forward(images)` returns outputs for `loss(outputs, targets)`, or `model` names the submodule that does.
    - Optimisation is automatic, on one device or with the strategy `"ddp"`.

    Checkpoints of the Trainer hold the policy, its random state and the state of the outer steps. Training resumed by
    `fit(ckpt_path=…)` continues exactly.

    Args:
        policy: The policy that learns.
        loss: The loss of outer steps, as for `PolicyOptimizer`.
        images: The index, key or attribute of the images in a batch.
        targets: The index, key or attribute of the targets in a batch.
        model: The name of the submodule that maps images to outputs. By default the `LightningModule`.
        validation: A loader of validation images for outer steps. By default the Trainer's. The policy learns from
            these images, so report the error of other images.
        validation_images: How many validation images of all processes an outer step uses. By default as the budget
            allows; with `every`, a batch of the loader for each process.
        train_images: How many of the newest training images of all processes an outer step draws for; more mean less
            noise. By default as the budget allows; with `every`, those of the last optimizer step. They stay on the
            device and are saved in checkpoints.
        **settings: Other arguments of `PolicyOptimizer`: `budget`, `every` and `warmup`, in optimizer steps,
            `optimizer`, `solver`, `estimator`, `transform`, `compute` and so on.

    Example:
        >>> callback = PolicyCallback(madao.Policy())
        >>> trainer = pl.Trainer(callbacks=[callback], accelerator="cpu")
        >>> trainer.fit(module, train_loader, validation_loader)  # doctest: +SKIP
    """

    def __init__(
        self,
        policy: Policy,
        loss: Loss = F.cross_entropy,
        *,
        images: Key = 0,
        targets: Key = 1,
        model: str | None = None,
        validation: Iterable[Any] | None = None,
        validation_images: int | None = None,
        train_images: int | None = None,
        **settings: Any,
    ) -> None:
        self.model, self.validation = model, validation
        self._learner = LoopAdapter(
            policy, images, targets, train_images, validation_images, {"loss": loss, **settings}
        )
        self._steps = 0

    @property
    def policy(self) -> Policy:
        """The policy that learns."""
        return self._learner.policy

    @property
    def outer(self) -> PolicyOptimizer | None:
        """The optimizer of the policy; None before the first fit."""
        return self._learner.outer

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        """Raise if this training is not supported; augment the batches of `training_step`."""
        if stage != "fit":
            return
        strategy = trainer.strategy
        # Not isinstance: strategies of other packages derive from DDPStrategy, and some of them divide the weights.
        if not (isinstance(strategy, strategies.SingleDeviceStrategy) or type(strategy) is strategies.DDPStrategy):
            raise ValueError(
                f"PolicyCallback needs all weights in every process, but the strategy is {type(strategy).__name__}; "
                "use Trainer(strategy='ddp'), or one device"
            )
        if not pl_module.automatic_optimization:
            raise ValueError(
                f"PolicyCallback needs automatic optimisation, but {type(pl_module).__name__} optimises manually; "
                "call policy(images) and madao.PolicyOptimizer.step in training_step instead"
            )
        if trainer.precision not in (*_WITHOUT_AUTOCAST, "bf16-mixed"):
            raise ValueError(
                f"PolicyCallback does not support Trainer(precision={trainer.precision!r}); use '32-true', "
                "'bf16-mixed' or '16-mixed'"
            )
        unwrapped = pl_module.training_step

        @functools.wraps(unwrapped)
        def training_step(batch: Any, *arguments: Any, **keywords: Any) -> Any:
            return unwrapped(self._learner.augment(batch), *arguments, **keywords)

        # On the instance, since the class has other instances.
        pl_module.__dict__["training_step"] = training_step

    def teardown(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        """Restore the module."""
        if stage == "fit":
            pl_module.__dict__.pop("training_step", None)
            self._learner.stop()

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        """Restore the module; Lightning does not call `teardown` after an error."""
        self.teardown(trainer, pl_module, "fit")

    def on_fit_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Prepare the outer steps, now that the model is on its device."""
        model: nn.Module = pl_module if self.model is None else pl_module.get_submodule(self.model)
        autocast = None if trainer.precision in _WITHOUT_AUTOCAST else torch.bfloat16
        # Infinite if only time or a callback ends the training.
        total = trainer.estimated_stepping_batches if self._learner.asks_for_total_steps else math.inf
        self._learner.start(model, autocast, int(total) if math.isfinite(total) else None)

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Read the number of optimizer steps, which a checkpoint may have restored."""
        self._steps = trainer.global_step

    def on_train_batch_end(
        self, trainer: "Trainer", pl_module: "LightningModule", outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count an optimizer step, and log if it led to an outer step."""
        self._learner.keep()
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        step = self._learner.step(lambda: self._loader(trainer, pl_module))
        if step is not None:
            values = self._learner.log(step)
            pl_module.log_dict(values, on_step=True, on_epoch=False, logger=False)
            # Not by log_dict, which drops steps between the logger's own intervals.
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoints of the Trainer."""
        return self._learner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self._learner.load_state_dict(state_dict)

    def _loader(self, trainer: "Trainer", pl_module: "LightningModule") -> Iterable[Any]:
        """Return the given loader, the Trainer's, or a new one of the data module if the Trainer does not validate."""
        if self.validation is not None:
            return self.validation
        found: Any = trainer.val_dataloaders
        datamodule = getattr(trainer, "datamodule", None)
        if found is None and datamodule is not None:
            found = datamodule.val_dataloader()
        if isinstance(found, list | tuple) and len(found) == 1:
            found = found[0]
        if found is None or isinstance(found, list | tuple | dict):
            raise ValueError(
                f"PolicyCallback needs one validation loader, but the Trainer has {len(found or ())}; give fit one, or "
                "choose one by PolicyCallback(validation=loader)"
            )
        loader: Iterable[Any] = found
        return loader
