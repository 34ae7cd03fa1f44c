"""What a run says at its end of a model that has learned hardly anything."""

import torch

from madao.training.trainer import Trainer

_GUESSING = 0.95
"""Part of the loss of guessing from which on hardly anything was learned."""


def warning(trainer: Trainer) -> str | None:
    """That the training loss ended where guessing by the classes' shares has it, and the remedy; None elsewhere."""
    if trainer.config.task.name != "classification":
        return None
    labels, smoothing = trainer.splits.train.labels, trainer.config.optimizer.label_smoothing
    counts = labels.bincount(minlength=len(trainer.splits.classes))
    shares = (1 - smoothing) * counts / len(labels) + smoothing / len(counts)
    guessing = float(torch.special.entr(shares).sum())
    loss = float(trainer.directory.read_metrics()[-1]["train_loss"])
    if loss < _GUESSING * guessing:
        return None
    lower = f"a lower --optimizer.lr, {trainer.config.optimizer.lr / 10:g} say"
    return (
        f"the model has learned hardly anything: its training loss is {loss:.2f}, that of guessing {guessing:.2f}; try "
        f"{lower}, or more steps by --epochs or a smaller --batch_size"
    )
