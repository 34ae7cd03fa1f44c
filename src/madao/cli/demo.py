"""`madao demo`: learn a policy on digits with a known shift, to see whether it finds the shift."""

import os
import shutil
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from madao.cli.parser import call
from madao.config.aliases import method_folder
from madao.config.train_config import AugmentConfig, DataConfig, OptimizerConfig, OuterConfig, Planted, TrainConfig
from madao.data.dataset import DatasetRequest
from madao.data.datasets.digits import digits
from madao.data.datasets.synthetic_shift import BY_CLASS, BY_TONE, FAMILIES, HALVES, dark_on_light
from madao.policy import FrozenPolicy, load_policy
from madao.text import METHOD_LABELS
from madao.training.builders.run import build_run
from madao.training.interrupt import Interrupted
from madao.training.run.directory import RunDirectory
from madao.training.run.result import Result
from madao.training.trainer import Trainer

METHODS = ("base", "uniform", "learned")


def command(arguments: list[str]) -> None:
    """Run `madao demo`."""
    call(demo, "demo", arguments)


def demo(planted: Planted = "rotate", seed: int = 0, epochs: int = 72, out: str | None = None) -> None:
    """Train on upright digits, test on shifted ones, and show whether the learned policy finds the shift.

    The demo trains with base augmentation, a uniform policy and a learned policy. Running it again resumes it, or shows
    the table again.

    Args:
        planted: Shift of the validation and test digits, or none for a control. With rotate-or-brightness, digits 0 to
            4 are rotated and 5 to 9 change in brightness. The demo then also learns a policy for each class. With
            by-tone, half of all digits are dark on light. Light digits are rotated, and dark ones change in brightness.
            The demo then also learns a policy that depends on the image.
        seed: Seed of weights, augmentation and the order of images.
        epochs: Number of passes over the 899 training digits.
        out: Folder of the run directories. By default runs/demo-PLANTED-SEED.
    """
    folder = Path(out or f"runs/demo-{planted}-{seed}")
    configs = {method: demo_config(method, planted, seed, epochs, folder) for method in methods(planted)}
    started = time.monotonic()
    results = _train_all(configs)
    console = Console(highlight=False, soft_wrap=True)
    console.print(_table(results, planted))
    if planted != "none":
        console.print(_verdict(results, planted), markup=False)
    console.print(f"took {time.monotonic() - started:.0f} s; the runs are in {folder}", markup=False)
    console.print(f"see the runs: {_program()} report {folder}", markup=False)


def _program() -> str:
    """Return the command to type for madao: its path, if it was called by path and is not on PATH."""
    called = Path(sys.argv[0])
    return os.path.relpath(called) if called.name == "madao" and shutil.which("madao") is None else "madao"


def methods(planted: str) -> tuple[str, ...]:
    """Return the methods of a demo. Shifts that depend on the class or the image add a conditional policy."""
    return (*METHODS, *{BY_CLASS: ("class",), BY_TONE: ("image",)}.get(planted, ()))


def demo_config(method: str, planted: Planted, seed: int, epochs: int, folder: Path) -> TrainConfig:
    """Return the settings of one training. Only `learned`, `class` and `image` use the policy's settings."""
    augment = AugmentConfig(
        method="learned" if method in ("class", "image") else method,
        conditional_on="class" if method == "class" else "image" if method == "image" else "none",
        crop="none",
        normalise=False,
    )
    return TrainConfig(
        data=DataConfig(name="digits", shift=planted),
        augment=augment,
        optimizer=OptimizerConfig(lr=0.1, nesterov=True, weight_decay=5e-4),
        # Few outer steps on many images: all steps are equally long, so each should have little noise.
        outer=OuterConfig(
            budget=0.0,
            every=6,
            lr=0.08,
            batch_size=512,
            train_batch_size=768,
            curvature_batch_size=384,
            pathwise_batch_size=384,
            microbatch=768,  # all in one pass, since digits are small
        ),
        epochs=epochs,
        batch_size=64,
        evaluate_every=4,
        logger="none",
        device="cpu",
        seed=seed,
        out=str(method_folder(folder, method)),
        resume=True,
    )


def _train_all(configs: dict[str, TrainConfig]) -> dict[str, Result]:
    """Train one method after the other, with at most two threads: more do not help so small a network."""
    for config in configs.values():
        RunDirectory(Path(str(config.out))).check(config)
    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, 2))
    try:
        return {method: Trainer(build_run(config, title=f"{method:>8}")).fit() for method, config in configs.items()}
    except Interrupted as stop:
        raise Interrupted(stop.number, "stopped, a checkpoint is written; run the same command to resume") from None
    finally:
        torch.set_num_threads(threads)


def _table(results: dict[str, Result], planted: Planted) -> Table:
    title = f"Digits: upright in training, shifted in validation and test ({planted})"
    table = Table("augmentation", "test error", "most frequent operations", title=title, title_justify="left")
    for method, result in results.items():
        default = {"base": "nothing", "uniform": "every operation 7 %"}.get(method, "")
        table.add_row(
            METHOD_LABELS.get(method, f"policy for each {method}"),
            f"{100 * (result.test_error or 0):.2f} %",
            result.favoured(3) or default,
        )
    return table


def half_shares(result: Result, planted: str) -> list[tuple[str, float, float, int]]:
    """Return whether each half of the classes or images draws its own shift most.

    Returns:
        For each half: the name of its shift, the mean selection probability of that operation in the half and in the
        other half, and the operation's rank within the half. Means are over the classes or training images of a half.
    """
    found = []
    means = _means_of_tones(result) if planted == BY_TONE else _means_of_classes(result)
    for here, name in enumerate(FAMILIES[planted]):
        mine, others = means[here], means[1 - here]
        found.append((name, mine[name], others[name], 1 + sum(value > mine[name] for value in mine.values())))
    return found


def _means_of_classes(result: Result) -> list[dict[str, float]]:
    return [
        {name: sum(result.classes[digit][name] for digit in half) / len(half) for name in result.policy}
        for half in HALVES
    ]


def _means_of_tones(result: Result) -> list[dict[str, float]]:
    train = digits(DatasetRequest(Path(), shift=BY_TONE)).train
    images, _ = train.load(list(range(len(train))))
    policy, dark = load_policy(result.out), dark_on_light(images)
    assert isinstance(policy, FrozenPolicy)
    shares = policy.tables_of(images)[0].mean(0)
    return [dict(zip(result.policy, shares[half].mean(0).tolist(), strict=True)) for half in (~dark, dark)]


def family_share(result: Result, planted: str) -> tuple[float, float, int]:
    """Return the selection probability of the shift's operations, its ratio to the initial one, and its rank.

    The rank compares the most likely of these operations with all others.
    """
    family = FAMILIES[planted]
    share = sum(result.policy[name] for name in family)
    best = max(result.policy[name] for name in family)
    rank = 1 + sum(value > best for name, value in result.policy.items() if name not in family)
    return share, share * len(result.policy) / len(family), rank


def _verdict(results: dict[str, Result], planted: Planted) -> str:
    if planted in (BY_CLASS, BY_TONE):
        method = methods(planted)[-1]
        classes = [f"{half[0]} to {half[-1]}" for half in HALVES]
        halves = ["light digits", "dark ones"] if planted == BY_TONE else classes
        parts = [
            f"{name} in {100 * here:.0f} % of draws for {half}, which have this shift, and in {100 * there:.0f} % for "
            "the others"
            for half, (name, here, there, _) in zip(halves, half_shares(results[method], planted), strict=True)
        ]
        return f"the learned policy for each {method} chooses {'; '.join(parts)}"
    share, times, rank = family_share(results["learned"], planted)
    family = " and ".join(FAMILIES[planted])
    place = {1: "the most", 2: "the second most"}.get(rank, f"place {rank}")
    errors = {method: result.test_error or 0.0 for method, result in results.items()}
    better = errors["learned"] < min(errors["uniform"], errors["base"])
    return (
        f"the policy chooses {family} in {100 * share:.0f} % of draws, {times:.1f} times as often as at the start and "
        f"{place} of all operations; its test error is {'the lowest' if better else 'not the lowest'}"
    )
