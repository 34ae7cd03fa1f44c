"""Measure how much signal the policy's gradient has at the weights of a checkpoint, for several estimators.

    python benchmarks/gradient_signal.py RUN [--checkpoint FILE] [--steps 200] [--output FILE]

Weights and policy stay fixed. Each outer gradient has its own images and draws. The script reports the cosine between
the mean gradients of two halves (0 is noise, 1 is signal), the squared signal-to-noise ratio of one step, the time of a
step, and the operations that the mean gradient of the selection favours, with t-values. On a GPU steps are CUDA graphs,
as in training.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from measure import environment, write

from madao.config.train_config import TrainConfig, from_dict
from madao.data import Batches
from madao.files import load_torch
from madao.hypergrad import (
    ClassMean,
    Deflated,
    GaussNewton,
    Identity,
    Influence,
    LeaveOneOut,
    Neumann,
    Relaxed,
    SameExample,
    Solver,
    Unaugmented,
    agreement,
    signal_to_noise,
    t_values,
)
from madao.outer import ComputeOptions, PolicyOptimizer
from madao.policy import Policy
from madao.training.builders.run import build_run
from madao.training.inner_step import crop_and_flip
from madao.training.run.checkpoint import LAST
from madao.training.run.directory import RunDirectory
from madao.training.run.state import Run

FAMILIES = ("selection", "application", "magnitude")


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to the gradient.

    Attributes:
        settings: Arguments of `PolicyOptimizer`.
        compute: Arguments of `ComputeOptions`.
        images: Training images a step, as a multiple of the batch size; each is drawn for `draws` times.
        validation: Validation images a step, likewise.
        curvature: Images that curvature is taken of, likewise.
    """

    settings: dict[str, Any]
    compute: dict[str, Any]
    images: float = 1
    validation: float = 1
    curvature: float = 1


NO_PRODUCTS = Identity(1.0)


def influence(baseline: Any, *sizes: float, solver: Solver = NO_PRODUCTS, **compute: Any) -> Variant:
    """Return a variant of influence on a model in evaluation mode."""
    return Variant({"estimator": Influence(baseline), "solver": solver}, compute, *sizes)


def relaxed(solver: Solver, **sizes: float) -> Variant:
    """Return a variant of the paper's estimator on a model in training mode."""
    return Variant({"estimator": Relaxed(), "solver": solver}, {"inner_mode": "train"}, **sizes)


VARIANTS: dict[str, Variant] = {
    "paper: relaxed, Neumann J=5": relaxed(Neumann(5, 1e-3), curvature=1 / 8),
    "relaxed, no products, 4 × validation": relaxed(Identity(1.0), validation=4),
    "influence, training mode, leave one out": influence(LeaveOneOut(), inner_mode="train"),
    "influence, leave one out": influence(LeaveOneOut()),
    "influence, deflated": influence(LeaveOneOut(), solver=Deflated()),
    "influence, deflated, a quarter of the magnitudes": influence(LeaveOneOut(), solver=Deflated(), pathwise_batch=32),
    "influence, gauss-newton, 16 × images, 4 × validation": influence(
        LeaveOneOut(), 16, 4, solver=GaussNewton(10), pathwise_batch=128
    ),
    "influence, gauss-newton, 16 × images, 4 × of all": influence(
        LeaveOneOut(), 16, 4, 4, solver=GaussNewton(10), pathwise_batch=128
    ),
    "influence, deflated, 4 × images": influence(LeaveOneOut(), 4, solver=Deflated()),
    "influence, deflated, 16 × images": influence(LeaveOneOut(), 16, solver=Deflated()),
    "influence, deflated by 64, 16 × images": influence(LeaveOneOut(), 16, solver=Deflated(64)),
    "influence, deflated, 16 × images, 4 × validation": influence(LeaveOneOut(), 16, 4, solver=Deflated()),
    "influence, deflated, 16 × images, 4 × of all": influence(
        LeaveOneOut(), 16, 4, 4, solver=Deflated(), pathwise_batch=128
    ),
    "influence, deflated, 32 × images, 8 × of all": influence(
        LeaveOneOut(), 32, 8, 8, solver=Deflated(), pathwise_batch=128
    ),
    "influence, class mean": influence(ClassMean()),
    "influence, unaugmented": influence(Unaugmented(), 0.5),
    "influence, 2 draws an image": influence(SameExample(), 0.5, draws=2),
    "influence, 4 draws an image": influence(SameExample(), 0.25, draws=4),
    "influence, leave one out, 4 × validation": influence(LeaveOneOut(), 1, 4),
    "influence, leave one out, 16 × images, 8 × validation": influence(LeaveOneOut(), 16, 8),
    "influence, training mode, 16 × images, 8 × validation": influence(LeaveOneOut(), 16, 8, inner_mode="train"),
}


def loaded(arguments: argparse.Namespace, folder: str) -> Run:
    """The run as its checkpoint left it; with `--fresh` under a policy that has not learned anything yet."""
    directory = RunDirectory(Path(arguments.run))
    saved = directory.saved_config()
    if saved is None:
        sys.exit(f"{arguments.run} is no run directory: it has no config.yaml")
    config: TrainConfig = from_dict(saved)
    data = config.data if arguments.root is None else dataclasses.replace(config.data, root=arguments.root)
    augment = dataclasses.replace(config.augment, method="learned")
    config = dataclasses.replace(
        config, data=data, augment=augment, device=arguments.device, out=str(Path(folder) / "run"), resume=False
    )
    run = build_run(config)
    path = directory.checkpoints.folder / LAST if arguments.checkpoint is None else arguments.checkpoint
    state = load_torch(path)
    run.network.load_state_dict(state["model"])
    learned = state.get("policy") is not None and saved["augment"]["method"] == "learned"
    if learned and not arguments.fresh and run.policy is not None:
        run.policy.load_state_dict(state["policy"])
    return run


def gradients(run: Run, variant: Variant, steps: int, warm: int, compile: bool) -> tuple[list[Tensor], float]:
    """The gradients of each family, `[steps, parameters]`, and the milliseconds of a step."""
    assert isinstance(run.policy, Policy)
    config = run.config
    outer = PolicyOptimizer(
        run.policy,
        run.network,
        run.task.losses,
        transform=run.base_augmentation.normalise,
        weight_decay=config.optimizer.weight_decay,
        compute=ComputeOptions(
            curvature_batch=max(round(config.batch_size * variant.curvature), 1),
            autocast=run.autocast,
            check_every=0,
            **variant.compute,
        ),
        **variant.settings,
    )
    if run.device.type == "cuda":
        outer.record(print, compile)
    sizes = max(round(config.batch_size * variant.images), 2), max(round(config.batch_size * variant.validation), 2)
    assert run.splits.validation is not None
    train, validation = (
        Batches(images, min(size, len(images)), run.device, config.seed + 1).stream(0)
        for images, size in zip((run.splits.train, run.splits.validation), sizes, strict=True)
    )
    found: list[list[Tensor]] = [[] for _ in FAMILIES]
    seconds = []
    for number in range(warm + steps):
        images, labels = next(train)
        draw, cropped = crop_and_flip(run.base_augmentation, images)
        outer_images, outer_labels = next(validation)
        batch, held_out = (cropped, labels, draw.hole_y, draw.hole_x), run.base_augmentation.centre(outer_images)
        began = time.perf_counter()
        found_gradients, stats = outer.gradient(batch, (held_out, outer_labels), run.base_augmentation.after_policy)
        seconds.append(time.perf_counter() - began)
        if not stats.usable:
            raise RuntimeError(f"step {number}: {stats.status.value}")
        if number >= warm:
            for family, gradient in zip(found, found_gradients, strict=True):
                family.append(gradient.detach().flatten().double().cpu().clone())
    return [torch.stack(rows) for rows in found], 1000 * statistics.median(seconds[warm:])


def judged(found: list[Tensor], milliseconds: float, policy: Policy) -> dict[str, Any]:
    """What the gradients say."""
    row: dict[str, Any] = {"milliseconds": milliseconds}
    for name, values in zip(FAMILIES, found, strict=True):
        ratio = signal_to_noise(values)
        row[name] = {
            "agreement": agreement(values),
            "signal_to_noise": ratio,
            "per_second": 1000 * ratio / milliseconds,
        }
    operations = [operation.name for operation in policy.operations]
    favour = -t_values(found[0]).reshape(policy.stages, -1).mean(0) * policy.stages**0.5
    best = favour.argsort(descending=True)[:5].tolist()
    row["favours"] = {operations[index]: round(float(favour[index]), 2) for index in best}
    row["application_mean_t"] = float(-t_values(found[1]).mean())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run directory")
    parser.add_argument("--checkpoint", type=Path, help="the checkpoint file; by default the run's last")
    parser.add_argument("--root", help="the folder of the data set, if it has moved since the run")
    parser.add_argument("--steps", type=int, default=200, help="number of outer gradients, both halves together")
    parser.add_argument(
        "--warm", type=int, default=20, help="steps before the measurement, which fill the solver's memory"
    )
    parser.add_argument(
        "--variants", default="", help="only variants whose name contains one of these texts, separated by |"
    )
    parser.add_argument("--fresh", action="store_true", help="measure an untrained policy instead of the run's")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = environment("torch", "triton", "madao")
    results["settings"] = {"steps": arguments.steps, "fresh": arguments.fresh}
    results["variants"] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = loaded(arguments, folder)
        assert isinstance(run.policy, Policy)
        for name, variant in VARIANTS.items():
            if not any(part in name for part in arguments.variants.split("|")):
                continue
            found, milliseconds = gradients(run, variant, arguments.steps, arguments.warm, arguments.compile)
            row = results["variants"][name] = judged(found, milliseconds, run.policy)
            print(f"{name:<44}{_line(row)}", flush=True)
            if arguments.output is not None:
                write(arguments.output, results)


def _line(row: dict[str, Any]) -> str:
    families = "  ".join(
        f"{name[:3]} {row[name]['agreement']:5.2f} ({row[name]['signal_to_noise']:7.4f})" for name in FAMILIES
    )
    return f"{families}  {row['milliseconds']:7.1f} ms  {json.dumps(row['favours'])}"


if __name__ == "__main__":
    main()
