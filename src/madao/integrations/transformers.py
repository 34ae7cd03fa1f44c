"""Hugging Face transformers: a `Trainer` for image classification that learns a policy while it trains."""

import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.files import save_torch
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
"""What a checkpoint's folder holds of the policy."""


class PolicyTrainer(Trainer):
    """A `transformers.Trainer` that learns a policy: `PolicyTrainer(model, args, …, policy=policy)`.

    The images of training batches go through the policy, and then, as those of evaluation and prediction, through
    `transform`. After each optimizer step (after accumulated batches, so) `PolicyOptimizer.step` is called with the
    images as they were before the policy, and validation images of `eval_dataset`. Where the training loss is logged,
    so is the latest outer step: the mean selection probability of each operation as `policy/Rotate`, and
    `policy/gradient_norm`, `policy/validation_loss` and `policy/signal_…`.

    What it asks of your program: data sets give images as floats in [0, 1] or uint8. So tell the image processor
    `do_normalize=False`, and give the same normalising as `transform`. The trained model then wants what the processor
    does by default. Several processes, under torchrun or accelerate, share the weights as `DistributedDataParallel`
    does; weights in parts (FSDP, DeepSpeed) are refused.

    The policy, its random state and all that the outer steps depend on lie in the checkpoints as `policy.pt`, and
    `train(resume_from_checkpoint=…)` goes on exactly.

    Args:
        *arguments: Of `transformers.Trainer`.
        policy: What learns.
        loss: As of `PolicyOptimizer`, of the model's logits and the targets. Outer steps do not ask the model for its
            own.
        transform: What makes of floats in [0, 1] what the model takes: normalising.
        images: Which entry of a batch the images are.
        targets: Which entry the targets are.
        validation: A loader of validation images for outer steps, in place of `eval_dataset`.
        validation_images: How many of them an outer step takes, of all processes together. By default a batch for each.
        train_images: How many of the newest training images an outer step draws for, of all processes together; more
            mean less noise. By default those of the optimizer step before it. They stay on the device, and are saved
            with checkpoints.
        settings: All others of `PolicyOptimizer`: `{"every": 30, "warmup": 1000}`, in optimizer steps, and so on.
        **keywords: Of `transformers.Trainer`.
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
                f"PolicyTrainer wants a process for each device, and here are {self.args.n_gpu} devices for one; start "
                f"it with torchrun --nproc_per_node {self.args.n_gpu}, or with CUDA_VISIBLE_DEVICES=0"
            )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ValueError(
                "PolicyTrainer needs all weights in every process, which FSDP and DeepSpeed do not have; start it with "
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
        """What makes it learn; None before training."""
        return self._learner.outer

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **keywords: Any) -> Any:
        """Train as `transformers.Trainer` does; from a checkpoint with the policy of the checkpoint.

        Args:
            resume_from_checkpoint: A folder, or True for the newest one in `output_dir` that was written to its end.
            *arguments: Of `transformers.Trainer.train`.
            **keywords: Of `transformers.Trainer.train`.

        Raises:
            ValueError: There is no checkpoint at all.
            FileNotFoundError: None of them is a whole one of a `PolicyTrainer`.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(_newest(Path(str(self.args.output_dir))))
        if resume_from_checkpoint:
            path = Path(resume_from_checkpoint) / POLICY_NAME
            if not path.exists():
                raise FileNotFoundError(_refused(path.parent, POLICY_NAME))
            self._learner.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        return super().train(resume_from_checkpoint, *arguments, **keywords)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **keywords: Any) -> Tensor:
        """A training step on augmented images."""
        augmented = self._transformed(self._learner.augment(self._prepare_inputs(inputs)))
        loss = super().training_step(model, augmented, *arguments, **keywords)
        self._learner.keep()
        return loss

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
        """A step of evaluation or prediction, on images that are not augmented."""
        return super().prediction_step(model, self._transformed(inputs), *arguments, **keywords)

    def log(self, logs: dict[str, float], *arguments: Any, **keywords: Any) -> None:
        """Log, and with the training loss the latest outer step."""
        super().log({**logs, **self._latest} if "loss" in logs else logs, *arguments, **keywords)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Put the policy, and then all the rest, into the checkpoint's folder: what looks whole has its policy."""
        content = self._learner.state_dict()  # to which every process has something to add
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            save_torch(folder / POLICY_NAME, content)
        super()._save_checkpoint(model, trial)

    def _transformed(self, inputs: dict[str, Any]) -> Any:
        images = entry(inputs, self._learner.images)
        floats = images / 255 if images.dtype == torch.uint8 else images
        return replaced(inputs, self._learner.images, self._transform(floats))


class _AfterSteps(TrainerCallback):
    """What happens between the trainer's steps."""

    def __init__(self, trainer: PolicyTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **_: Any
    ) -> None:
        """Get ready, now that the model is on its device."""
        trainer = self.trainer
        assert isinstance(trainer.model, nn.Module)
        if trainer._logits is None or trainer._logits.model is not trainer.model:
            trainer._logits = _Logits(trainer.model, str(trainer._learner.images))
        trainer._learner.start(trainer._logits, autocast=torch.bfloat16 if args.bf16 else None)

    def on_step_end(
        self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **_: Any
    ) -> None:
        """After an optimizer step, perhaps an outer step."""
        trainer = self.trainer
        validation = trainer.validation
        step = trainer._learner.step(lambda: trainer.get_eval_dataloader() if validation is None else validation)
        if step is not None:
            trainer._latest = trainer._learner.log(step)

    def on_train_end(
        self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **_: Any
    ) -> None:
        """Let go of the validation loader."""
        self.trainer._learner.stop()


class _Logits(nn.Module):
    """A model of transformers as a function from images to logits."""

    def __init__(self, model: nn.Module, images: str) -> None:
        super().__init__()
        self.model, self.images = model, images

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.model(**{self.images: images}, return_dict=True).logits
        return logits


def _newest(output: Path) -> Path:
    """The newest checkpoint with a policy and, what is written last, the trainer's state."""
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
        _LOGGER.warning("%s has no %s and is passed over: it was not written to its end", folder, absent)
    raise FileNotFoundError(_refused(folders[0], str(missing[0])))


def _refused(folder: Path, missing: str) -> str:
    return (
        f"there is no {missing} in {folder}: it is no whole checkpoint of a PolicyTrainer; to go on from its weights "
        "alone, load them with from_pretrained and train anew"
    )


def _unchanged(images: Tensor) -> Tensor:
    return images
