"""Lightning: a callback that learns a policy while any `LightningModule` with automatic optimisation trains."""

import functools
import importlib
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
    # Both are often installed. That which the program has imported is the one its Trainer comes from.
    _chosen = next((name for name in _installed if name in sys.modules), _installed[0])
    Callback = importlib.import_module(_chosen).Callback
    strategies = importlib.import_module(f"{_chosen}.strategies")

__all__ = ["PolicyCallback"]

_WITHOUT_AUTOCAST = ("32-true", "16-mixed")
"""Precisions under which outer steps are in float32; in float16 their second derivatives would underflow."""


class PolicyCallback(Callback):
    """Learns a policy in a Lightning training: `Trainer(callbacks=[PolicyCallback(policy, every=30)])`.

    The images of training batches go through the policy right before `training_step` sees them; nothing else of the
    training changes, and validation, test and sanity check see their batches as they are. After each optimizer
    step (after accumulated batches, so) `PolicyOptimizer.step` is called with the images as they were before the
    policy, and validation images of the Trainer's own validation loader. After each outer step, loggers and
    `trainer.callback_metrics` get the mean selection probability of each operation as `policy/Rotate`, and
    `policy/gradient_norm`, `policy/validation_loss` and `policy/signal_…`.

    What it asks of your program:

    - Batches hold images as floats in [0, 1], `[B, C, H, W]`, and targets: a tuple, list, mapping, or object with
      attributes. So normalise in `forward`, not in the data set. Where your steps do it and `forward` does not, give
      the same function as `transform`: outer steps call `forward(transform(images))`.
    - `forward(images)` returns what `loss(outputs, targets)` takes, or `model` names the submodule that does.
    - Automatic optimisation, on one device or with the strategy `"ddp"`.

    The policy, its random state and all that the outer steps depend on are part of the Trainer's checkpoints, and
    `fit(ckpt_path=…)` goes on exactly.

    Args:
        policy: What learns.
        loss: As of `PolicyOptimizer`.
        images: Which entry of a batch the images are: an index, key, or attribute.
        targets: Which entry the targets are.
        model: Name of the submodule that turns images into outputs. By default the `LightningModule` itself.
        validation: A loader of validation images for outer steps, in place of the Trainer's. Images that also choose a
            checkpoint, or are reported, have been learned from: what is reported should be images of neither.
        validation_images: How many of them an outer step takes, of all processes together. By default a batch of the
            loader for each.
        train_images: How many of the newest training images an outer step draws for, of all processes together; more
            mean less noise. By default those of the optimizer step before it. They stay on the device, and are saved
            with checkpoints.
        **settings: All others of `PolicyOptimizer`: `every` and `warmup`, in optimizer steps, `optimizer`, `solver`,
            `estimator`, `transform` and so on.
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
        """What learns."""
        return self._learner.policy

    @property
    def outer(self) -> PolicyOptimizer | None:
        """What makes it learn; None before the first fit."""
        return self._learner.outer

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        """Refuse what cannot be done, and step between the batch and `training_step`."""
        if stage != "fit":
            return
        strategy = trainer.strategy
        # Those of others are subclasses of DDPStrategy, and some of them hand out parts of the weights.
        if not (isinstance(strategy, strategies.SingleDeviceStrategy) or type(strategy) is strategies.DDPStrategy):
            raise ValueError(
                f"PolicyCallback needs all weights in every process, and the strategy is {type(strategy).__name__}; "
                "use Trainer(strategy='ddp'), or one device"
            )
        if not pl_module.automatic_optimization:
            raise ValueError(
                f"PolicyCallback needs automatic optimisation, and {type(pl_module).__name__} optimises by hand; "
                "there, call policy(images) and madao.PolicyOptimizer.step in training_step yourself"
            )
        if trainer.precision not in (*_WITHOUT_AUTOCAST, "bf16-mixed"):
            raise ValueError(
                f"PolicyCallback cannot do Trainer(precision={trainer.precision!r}); use '32-true', 'bf16-mixed' or "
                "'16-mixed'"
            )
        unwrapped = pl_module.training_step

        @functools.wraps(unwrapped)
        def training_step(batch: Any, *arguments: Any, **keywords: Any) -> Any:
            return unwrapped(self._learner.augment(batch), *arguments, **keywords)

        # On the instance: the class, and with it every other instance, stays as it is.
        pl_module.__dict__["training_step"] = training_step

    def teardown(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        """Leave the module as it was."""
        if stage == "fit":
            pl_module.__dict__.pop("training_step", None)
            self._learner.stop()

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        """Leave the module as it was; Lightning tears nothing down after an error."""
        self.teardown(trainer, pl_module, "fit")

    def on_fit_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Get ready, now that the model is on its device."""
        model: nn.Module = pl_module if self.model is None else pl_module.get_submodule(self.model)
        autocast = None if trainer.precision in _WITHOUT_AUTOCAST else torch.bfloat16
        self._learner.start(model, autocast=autocast)

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Where the count of optimizer steps stands, after a checkpoint may have been restored."""
        self._steps = trainer.global_step

    def on_train_batch_end(
        self, trainer: "Trainer", pl_module: "LightningModule", outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After an optimizer step, perhaps an outer step."""
        self._learner.keep()
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        step = self._learner.step(lambda: self._loader(trainer, pl_module))
        if step is not None:
            values = self._learner.log(step)
            pl_module.log_dict(values, on_step=True, on_epoch=False, logger=False)
            # Not by log_dict, which drops what does not fall on the logger's own interval.
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """For the Trainer's checkpoints."""
        return self._learner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From one of them."""
        self._learner.load_state_dict(state_dict)

    def _loader(self, trainer: "Trainer", pl_module: "LightningModule") -> Iterable[Any]:
        """That which was given, the Trainer's, or a new one where it does not validate."""
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
                f"PolicyCallback needs one validation loader, and the Trainer has {len(found or ())}; give fit one, or "
                "say which with PolicyCallback(validation=loader)"
            )
        loader: Iterable[Any] = found
        return loader
