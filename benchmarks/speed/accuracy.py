"""Measure how close the fast hypergradient is to the exact one: cosines on trained weights.

    python benchmarks/speed/accuracy.py [--data cifar10 --root DIRECTORY] [--epochs 25] [--output FILE]

A run of `madao train` trains model and policy. Then the script computes the gradient of the policy twice for each of
several batches, with the same draw. The fast gradient is that of training: half precision, traced and compiled, on a
GPU, with the Hessian over a few images of the batch, without the powers that contribute less than 1 %. The exact one is
float64, forward over reverse in Python, with the whole batch and all powers. The cosine is over all parameters of the
policy, and over selection, application and magnitude separately.
"""

import argparse
import copy
import dataclasses
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import environment, write
from torch import Tensor

from madao.config.train_config import (
    AugmentConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    OuterConfig,
    SpeedConfig,
    TrainConfig,
)
from madao.data import Batches
from madao.hypergrad import (
    FunctionalModel,
    Identity,
    Influence,
    Neumann,
    Problem,
    Relaxed,
    Traced,
    Unaugmented,
    hypergradient,
)
from madao.outer import ComputeOptions, PolicyOptimizer
from madao.outer.outer_step import OuterRequest
from madao.policy import Policy
from madao.training.builders.run import build_run
from madao.training.inner_step import crop_and_flip
from madao.training.run.state import Run
from madao.training.trainer import Trainer

CASES: dict[str, dict[str, Any]] = {
    "relaxed, J=5": {"estimator": Relaxed(), "solver": Neumann(5, 1e-3, 0.01)},
    "relaxed, J=5, all powers": {"estimator": Relaxed(), "solver": Neumann(5, 1e-3)},
    "influence, J=5": {"estimator": Influence(Unaugmented()), "solver": Neumann(5, 1e-3, 0.01)},
    "influence, J=0": {"estimator": Influence(Unaugmented()), "solver": Identity(1e-3)},
}
FAMILIES = ("selection", "application", "magnitude")


def trained(arguments: argparse.Namespace, folder: str) -> Run:
    """Return a run in the middle of training."""
    on_gpu = torch.cuda.is_available()
    config = TrainConfig(
        data=DataConfig(name=arguments.data, root=arguments.root),
        model=ModelConfig(name=arguments.model),
        augment=AugmentConfig(cutout=16 if arguments.root else 0),
        optimizer=OptimizerConfig(schedule="constant"),
        outer=OuterConfig(budget=0.0, every=30, warmup=0, solver="identity", scale=1e-3),
        speed=SpeedConfig(compile=False),
        epochs=arguments.epochs,
        batch_size=arguments.batch,
        precision="bf16" if on_gpu else "32",
        evaluate_every=arguments.epochs,
        logger="none",
        out=str(Path(folder) / "run"),
    )
    run = build_run(config)
    Trainer(run).fit()
    return run


def fast(run: Run, case: dict[str, Any], curvature: int) -> PolicyOptimizer:
    """Return the optimizer of outer steps that `madao train` uses."""
    assert isinstance(run.policy, Policy)
    return PolicyOptimizer(
        run.policy,
        run.network,
        run.task.losses,
        transform=run.base_augmentation.normalise,
        weight_decay=run.config.optimizer.weight_decay,
        compute=ComputeOptions(inner_mode="train", curvature_batch=curvature, autocast=run.autocast),
        **case,
    )


def exact(run: Run, case: dict[str, Any], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the same gradient in float64, computed in the slow and simple way."""
    policy, standard = run.policy, run.base_augmentation
    assert isinstance(policy, Policy)
    model = copy.deepcopy(run.network).double()
    images, targets, hole_y, hole_x, outer_images, outer_targets = tensors
    draw = policy.sample(images, relaxed=True)
    draw = draw.pathwise() if isinstance(case["estimator"], Influence) else draw
    fields: dict[str, Any] = {field.name: getattr(draw, field.name) for field in dataclasses.fields(draw)}
    draw = dataclasses.replace(draw, **{name: _double(value) for name, value in fields.items()})
    doubles = images.double() / 255

    def inner(params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return F.cross_entropy(FunctionalModel(model, "train")(params, inputs), targets, reduction="none")

    def outer(params: dict[str, Tensor], _: Tensor) -> Tensor:
        return F.cross_entropy(
            FunctionalModel(model, "eval")(params, standard.normalise(outer_images.double() / 255)), outer_targets
        )

    problem = Problem(
        params=FunctionalModel(model).params,
        hyper=tuple(policy.parameters()),
        inputs=standard.after_policy(policy.augment(doubles, draw), hole_y, hole_x),
        inner=inner,
        outer=outer,
        weight_decay=run.config.optimizer.weight_decay,
        log_prob=policy.effect_log_prob(draw),
        plain=standard.after_policy(doubles, hole_y, hole_x),
    )
    grads: tuple[Tensor, ...] = hypergradient(problem, case["solver"], estimator=case["estimator"]).grads
    return grads


def _double(value: Any) -> Any:
    return value.double() if value is not None and value.is_floating_point() else value


def cosine(first: list[Tensor], second: list[Tensor]) -> float:
    """Return the cosine of two vectors in several parts."""
    a, b = (torch.cat([part.double().flatten() for part in parts]) for parts in (first, second))
    return float(F.cosine_similarity(a, b, dim=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="the data set, as --data.name of madao train")
    parser.add_argument("--root", help="its folder, as --data.root of madao train")
    parser.add_argument("--model", default="wrn-28-2")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--curvature", type=int, default=8, help="number of images in the Hessian of the fast gradient")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--output", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = environment("torch", "triton", "madao")
    results["settings"] = {name: value for name, value in vars(arguments).items() if name not in ("output", "root")}
    with tempfile.TemporaryDirectory() as folder:
        run = trained(arguments, folder)
    results["train_error"], results["validation_error"] = run.metrics.error, run.validation_error
    assert run.splits.validation is not None
    batches = [
        Batches(images, arguments.batch, run.device, seed).stream(0)
        for seed, images in enumerate((run.splits.train, run.splits.validation))
    ]
    given = []
    for _ in range(arguments.batches):
        (images, labels), (outer_images, outer_labels) = (next(stream) for stream in batches)
        draw, cropped = crop_and_flip(run.base_augmentation, images)
        centred = run.base_augmentation.centre(outer_images)
        given.append((cropped, labels, draw.hole_y, draw.hole_x, centred, outer_labels))
    static = tuple(tensor.clone() for tensor in given[0])
    results["cases"] = {}
    for name, case in CASES.items():
        outer = fast(run, case, arguments.curvature)
        traced = outer.reference.with_hvp(Traced(run.device.type == "cuda" and not arguments.no_compile))
        asked = OuterRequest(run.base_augmentation.after_policy, 2, False)
        solver, lengths = case["solver"], None
        if isinstance(solver, Neumann) and solver.shortens:  # as the first outer step finds out
            whole = dataclasses.replace(asked, state=solver.steps)
            stats = traced(whole, static).read()
            lengths, asked = stats.term_norms, dataclasses.replace(asked, state=solver.update(whole.state, None, stats))
        found: dict[str, list[float]] = {family: [] for family in ("all", *FAMILIES)}
        for tensors in given:
            for target, source in zip(static, tensors, strict=True):
                target.copy_(source)
            state = outer.policy.get_extra_state()
            quick = list(traced(asked, static).grads)
            outer.policy.set_extra_state(state)
            slow = list(exact(run, case, static))
            found["all"].append(cosine(quick, slow))
            for index, family in enumerate(FAMILIES):
                found[family].append(cosine(quick[index : index + 1], slow[index : index + 1]))
        results["cases"][name] = {
            family: {"median": statistics.median(values), "least": min(values)} for family, values in found.items()
        }
        results["cases"][name] |= {"products": asked.state, "lengths_of_powers": lengths}
        print(name, json.dumps(results["cases"][name]), flush=True)
        if arguments.output is not None:
            write(arguments.output, results)


if __name__ == "__main__":
    main()
