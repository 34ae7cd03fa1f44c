"""The whole state of a run between two steps, as plain values and tensors, and back."""

from typing import TYPE_CHECKING, Any

import torch

from madao.errors import UserError

if TYPE_CHECKING:
    from madao.training.trainer import Trainer

FORMAT = 1
_PARTS = ("policy", "learning", "average")
"""What only some runs have."""


def snapshot(trainer: "Trainer") -> dict[str, Any]:
    """Everything that what comes next depends on; the place in the data follows from epoch and step."""
    random = {"cpu": torch.get_rng_state()}
    if trainer.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(trainer.device)
    state: dict[str, Any] = {
        "format": FORMAT,
        "epoch": trainer.epoch,
        "step": trainer.step,
        "best": trainer.best,
        "validation_error": trainer.validation_error,
        "classes": list(trainer.splits.classes),
        "data": trainer.splits.fingerprint(),
        "model": trainer.network.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "standard": trainer.standard.state_dict(),
        "totals": trainer.totals.state_dict(),
        "meter": trainer.meter.state_dict(),
        "random": random,
    }
    state["task"] = trainer.task.state_dict()
    for name in _PARTS:
        part = getattr(trainer, name)
        state[name] = None if part is None else part.state_dict()
    if trainer.epoch == trainer.config.epochs and trainer.learning is not None:
        state["learning"]["recent"] = None  # gradients several times as large as the model, for steps yet to come
    return state


def restore(trainer: "Trainer", state: dict[str, Any]) -> None:
    """Put a trainer where a snapshot was taken."""
    if state.get("format") != FORMAT:
        raise UserError(
            f"the checkpoint in {trainer.directory.path} has the format {state.get('format')!r}, this version of madao "
            f"reads {FORMAT}; resume it with the version that wrote it"
        )
    here = trainer.splits.fingerprint()
    for name, before in state["data"].items():
        if here[name] != before:
            raise UserError(
                f"the images are not those the run in {trainer.directory.path} began with: {name} was {before!r} and "
                f"is {here[name]!r}; bring them back, or begin anew in another --out"
            )
    trainer.epoch, trainer.step, trainer.best = state["epoch"], state["step"], state["best"]
    trainer.validation_error = state["validation_error"]
    trainer.network.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    for group in trainer.optimizer.param_groups:
        group["fused"] = trainer.device.type == "cuda"  # of the device the run goes on on, not the one it began on
    trainer.standard.load_state_dict(state["standard"])
    trainer.totals.load_state_dict(state["totals"])
    trainer.meter.load_state_dict(state.get("meter"), trainer.totals.images)
    for name in _PARTS:
        part = getattr(trainer, name)
        if part is not None:
            part.load_state_dict(state[name])
    if state.get("task") is not None:
        trainer.task.load_state_dict(state["task"])
    if not trainer.ranks.first:  # the state is the first one's
        torch.manual_seed(trainer.config.seed + 7919 * trainer.ranks.rank + trainer.step)
        return
    torch.set_rng_state(state["random"]["cpu"])
    if trainer.device.type == "cuda" and "cuda" in state["random"]:
        torch.cuda.set_rng_state(state["random"]["cuda"], trainer.device)


def resume_note(trainer: "Trainer", finished: bool) -> list[str]:
    """Where a run that began earlier stands, for people; nothing where it begins."""
    where, total = f"epoch {trainer.epoch} of {trainer.config.epochs}", trainer.config.epochs * trainer.steps_per_epoch
    if finished:
        return [f"finished before, after {where}: nothing is left to train"]
    return [f"goes on after {where}, at step {trainer.step:,} of {total:,}"] if trainer.step else []
