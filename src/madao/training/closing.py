"""What a run says at its end of a model that has learned hardly anything."""

import torch

from madao.training.trainer import Trainer

_GUESSING = 0.95
"""Part of the loss of guessing from which on hardly anything was learned."""


def warning(trainer: Trainer) -> str | None:
    """That the training loss ended where guessing by the classes' shares has it, and the remedy; None elsewhere."""
    if trainer.config.task.name != "classification":
        return None
    labels = trainer.splits.train.labels
    guessing = float(torch.special.entr(labels.bincount() / len(labels)).sum())
    loss = float(trainer.directory.read_metrics()[-1]["train_loss"])
    if loss < _GUESSING * guessing:
        return None
    lower = f"a lower --optimizer.lr, {trainer.config.optimizer.lr / 10:g} say"
    return (
        f"the model has learned hardly anything: its training loss is {loss:.2f}, that of guessing {guessing:.2f}; try "
        f"{lower}, or more steps by --epochs or a smaller --batch_size"
    )
