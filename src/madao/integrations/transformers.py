"""A Hugging Face `Trainer` for image classification that learns a policy while it trains."""

import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.files import load_torch, save_torch
from madao.integrations.batch_access import entry, replaced
from madao.integrations.loop_adapter import LoopAdapter
from madao.outer import PolicyOptimizer
from madao.outer.example_losses import Loss
from madao.policy import Policy

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise ImportError(
        "madao.integrations.transformers needs transformers and accelerate, and one of them is not installed: "
        "pip install 'madao[transformers]'"
    ) from error

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

__all__ = ["PolicyTrainer"]

_LOGGER = logging.getLogger("madao")

POLICY_NAME = "policy.pt"
"""The file of the policy in a checkpoint's folder."""


class PolicyTrainer(Trainer):
    """A `transformers.Trainer` that learns a policy: `PolicyTrainer(model, args, …, policy=policy)`.

    The policy augments the images of training batches; `transform` follows, for evaluation and prediction too. After
    each optimizer step the trainer passes the original training images, and validation images of `eval_dataset`, to
    `PolicyOptimizer`. With accumulated gradients the images are those of all accumulated batches. The numbers of the
    latest outer step are logged with the training loss: the mean selection probability of each operation as
    `policy/Rotate`, and `policy/gradient_norm`, `policy/validation_loss` and `policy/signal_…`.

    Data sets must give images as floats in [0, 1] or as uint8. So set `do_normalize=False` in the image processor, and
    give the same normalising as `transform`. The trained model takes the default output of the processor. Several
    processes, under torchrun or accelerate, must each have all weights, as under `DistributedDataParallel`; FSDP and
    DeepSpeed, which divide the weights, are refused.

    The file `policy.pt` of each checkpoint holds the policy, its random state and the state of the outer steps.
    Training resumed by `train(resume_from_checkpoint=…)` continues exactly.

    Args:
        *arguments: Positional arguments of `transformers.Trainer`.
        policy: The policy that learns.
        loss: The loss of outer steps, as for `PolicyOptimizer`, of the model's logits and the targets. It replaces the
            loss of the model.
        transform: Maps floats in [0, 1] to the input of the model: normalising.
        images: The key of the images in a batch.
        targets: The key of the targets in a batch.
        validation: A loader of validation images for outer steps. By default that of `eval_dataset`.
        validation_images: How many validation images of all processes an outer step uses. By default as the budget
            allows; with `every`, a batch for each process.
        train_images: How many of the newest training images of all processes an outer step draws for; more mean less
            noise. By default as the budget allows; with `every`, those of the last optimizer step. They stay on the
            device and are saved in checkpoints.
        settings: Other arguments of `PolicyOptimizer`, such as `{"budget": 0.2}`, or `{"every": 30, "warmup": 1000}` in
            optimizer steps.
        **keywords: Keyword arguments of `transformers.Trainer`.

    Example:
        >>> trainer = PolicyTrainer(  # doctest: +SKIP
        ...     model,
        ...     TrainingArguments("out"),
        ...     train_dataset=train,
        ...     eval_dataset=validation,
        ...     policy=madao.Policy(),
        ...     transform=lambda images: (images - 0.5) / 0.5,
        ... )
        >>> trainer.train()  # doctest: +SKIP
    """

    def __init__(
        self,
        *arguments: Any,
        policy: Policy,
        loss: Loss = F.cross_entropy,
        transform: Callable[[Tensor], Tensor] | None = None,
        images: str = "pixel_values",
        targets: str = "labels",
        validation: Iterable[Any] | None = None,
        validation_images: int | None = None,
        train_images: int | None = None,
        settings: dict[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__(*arguments, **keywords)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"PolicyTrainer needs one process for each device, but this process has {self.args.n_gpu} devices; "
                f"start it with torchrun --nproc_per_node {self.args.n_gpu}, or with CUDA_VISIBLE_DEVICES=0"
            )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ValueError(
                "PolicyTrainer needs all weights in every process, but FSDP and DeepSpeed divide them; start it with "
                "torchrun alone"
            )
        self.policy, self.validation = policy, validation
        self._transform = _unchanged if transform is None else transform
        self._learner = LoopAdapter(
            policy,
            images,
            targets,
            train_images,
            validation_images,
            {"loss": loss, "transform": self._transform, **(settings or {})},
        )
        self._logits: _Logits | None = None
        self._latest: dict[str, float] = {}
        self.add_callback(_AfterSteps(self))

    @property
    def outer(self) -> PolicyOptimizer | None:
        """The optimizer of the policy; None before training."""
        return self._learner.outer

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **keywords: Any) -> Any:
        """Train as `transformers.Trainer` does. From a checkpoint, restore its policy too.

        Args:
            resume_from_checkpoint: A folder, or True for the newest complete checkpoint in `output_dir`.
            *arguments: Positional arguments of `transformers.Trainer.train`.
            **keywords: Keyword arguments of `transformers.Trainer.train`.

        Raises:
            ValueError: There is no checkpoint.
            FileNotFoundError: No checkpoint is a complete one of a `PolicyTrainer`.
            UserError: The policy of the checkpoint is damaged.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(_newest(Path(str(self.args.output_dir))))
        if resume_from_checkpoint:
            path = Path(resume_from_checkpoint) / POLICY_NAME
            if not path.exists():
                raise FileNotFoundError(_refused(path.parent, POLICY_NAME))
            self._learner.load_state_dict(load_torch(path))
        return super().train(resume_from_checkpoint, *arguments, **keywords)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **keywords: Any) -> Tensor:
        """Perform a training step on augmented images."""
        augmented = self._transformed(self._learner.augment(self._prepare_inputs(inputs)))
        loss = super().training_step(model, augmented, *arguments, **keywords)
        self._learner.keep()
        return loss

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
        """Perform a step of evaluation or prediction on images that are not augmented."""
        return super().prediction_step(model, self._transformed(inputs), *arguments, **keywords)

    def log(self, logs: dict[str, float], *arguments: Any, **keywords: Any) -> None:
        """Log, and add the latest outer step to the training loss."""
        super().log({**logs, **self._latest} if "loss" in logs else logs, *arguments, **keywords)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save the policy before the rest, so that every complete checkpoint has its policy."""
        content = self._learner.state_dict()  # a collective call
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            save_torch(folder / POLICY_NAME, content)
        super()._save_checkpoint(model, trial)

    def _transformed(self, inputs: dict[str, Any]) -> Any:
        images = entry(inputs, self._learner.images)
        floats = images / 255 if images.dtype == torch.uint8 else images
        return replaced(inputs, self._learner.images, self._transform(floats))


class _AfterSteps(TrainerCallback):
    """The calls between the steps of a `PolicyTrainer`."""

    def __init__(self, trainer: PolicyTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **_: Any
    ) -> None:
        """Prepare the outer steps, now that the model is on its device."""
        trainer = self.trainer
        assert isinstance(trainer.model, nn.Module)
        if trainer._logits is None or trainer._logits.model is not trainer.model:
            trainer._logits = _Logits(trainer.model, str(trainer._learner.images))
        trainer._learner.start(trainer._logits, torch.bfloat16 if args.bf16 else None, state.max_steps or None)

    def on_step_end(
        self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **_: Any
    ) -> None:
        """Count an optimizer step."""
        trainer = self.trainer
        validation = trainer.validation
        step = trainer._learner.step(lambda: trainer.get_eval_dataloader() if validation is None else validation)
        if step is not None:
            trainer._latest = trainer._learner.log(step)

    def on_train_end(
        self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **_: Any
    ) -> None:
        """Release the validation loader."""
        self.trainer._learner.stop()


class _Logits(nn.Module):
    """A model of transformers that maps images to logits."""

    def __init__(self, model: nn.Module, images: str) -> None:
        super().__init__()
        self.model, self.images = model, images

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.model(**{self.images: images}, return_dict=True).logits
        return logits


def _newest(output: Path) -> Path:
    """Return the newest checkpoint with a policy and the state of the trainer, which is written last."""
    names = (path.name for path in output.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir())
    numbers = (re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", name) for name in names)
    folders = [output / match[0] for match in sorted(filter(None, numbers), key=lambda match: -int(match[1]))]
    if not folders:
        raise ValueError(
            f"No valid checkpoint found in output directory ({output}); train without resuming, or name one"
        )
    missing = [
        next((name for name in (POLICY_NAME, TRAINER_STATE_NAME) if not (folder / name).exists()), None)
        for folder in folders
    ]
    for folder, absent in zip(folders, missing, strict=True):
        if absent is None:
            return folder
        _LOGGER.warning("%s has no %s and is skipped: it is incomplete", folder, absent)
    raise FileNotFoundError(_refused(folders[0], str(missing[0])))


def _refused(folder: Path, missing: str) -> str:
    return (
        f"there is no {missing} in {folder}, so it is not a complete checkpoint of a PolicyTrainer; to start from its "
        "weights, load them with from_pretrained and train without resuming"
    )


def _unchanged(images: Tensor) -> Tensor:
    return images
