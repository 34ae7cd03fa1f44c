"""Measure one outer gradient of a policy: time, peak memory and cosine to the exact one, madao and its peers.

    python benchmarks/speed/hypergrad.py                       # CPU, WideResNet-10-1, batch 32
    python benchmarks/speed/hypergrad.py --device cuda         # GPU, WideResNet-28-2, batch 128

Every contender gets the same model, batch, draw, J = 5 and α = 1e-3. It returns ∂g/∂φ for the 78 parameters of a
policy, relaxed as in the paper, in float32, eagerly. The model has been trained for some steps first. "Exact" is the
same series in float64. Peers are called through their own functions: betty's `neumann`, hypertorch's `fixed_point`,
TorchOpt's `custom_root` with its Neumann solver. The JSON names those that cannot be imported. Peak memory is the
memory that the call itself allocates, measured on GPUs only.
"""

import argparse
import copy
import dataclasses
import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import environment, rates, write
from networks import wide_resnet
from torch import Tensor, nn

from madao import Policy
from madao.hypergrad import (
    ConjugateGradient,
    DoubleBackward,
    FiniteDifference,
    ForwardOverReverse,
    FunctionalModel,
    Identity,
    Momentum,
    Neumann,
    Nystrom,
    Problem,
    Unrolled,
    hypergradient,
)

STEPS, SCALE = 5, 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class FlatProblem:
    """The problem of a contender; `augmented()` builds the graph from φ anew."""

    model: nn.Module
    policy: Policy
    images: Tensor
    labels: Tensor
    validation: Tensor
    validation_labels: Tensor
    draw_seed: int = 3

    def augmented(self) -> Tensor:
        """Return the batch under a fixed draw, with its graph to φ."""
        generator = torch.Generator(self.images.device).manual_seed(self.draw_seed)
        return self.policy.augment(self.images, self.policy.sample(self.images, generator, relaxed=True))

    def exact(self) -> list[Tensor]:
        """Return the gradient with everything between the augmented images and the losses in float64."""
        model, validation = copy.deepcopy(self.model).double(), self.validation.double()
        inner, outer = FunctionalModel(model, "train"), FunctionalModel(model, "eval")
        augmented = self.augmented()
        problem = Problem(
            inner.params,
            augmented.detach().double(),
            lambda params, images: F.cross_entropy(inner(params, images), self.labels),
            lambda params, _: F.cross_entropy(outer(params, validation), self.validation_labels),
        )
        cotangent = hypergradient(problem, Neumann(STEPS, SCALE), check=False).grads
        return list(torch.autograd.grad(augmented, list(self.policy.parameters()), cotangent.float()))

    def problem(self, curvature: int | None = None) -> Problem:
        """Return madao's problem, with the Hessian over the first `curvature` examples."""
        inner, outer = FunctionalModel(self.model, "train"), FunctionalModel(self.model, "eval")

        def loss(count: int | None, params: Any, images: Tensor) -> Tensor:
            return F.cross_entropy(inner(params, images[:count]), self.labels[:count])

        return Problem(
            inner.params,
            tuple(self.policy.parameters()),
            functools.partial(loss, None),
            lambda params, _: F.cross_entropy(outer(params, self.validation), self.validation_labels),
            inputs=self.augmented(),
            curvature=None if curvature is None else functools.partial(loss, curvature),
        )


def prepare(device: str, depth: int, width: int, batch: int, training_steps: int) -> FlatProblem:
    """Return a problem: random images with learnable labels, and a model trained on them for some steps."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)

    def images(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, 10, (count,), generator=generator)
        pattern = torch.rand(10, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        clean = F.interpolate(pattern, size=32, mode="bilinear")[labels]
        noisy = (0.6 * clean + 0.4 * torch.rand(clean.shape, generator=generator)).clamp(0, 1)
        return noisy.to(device), labels.to(device)

    model = wide_resnet(depth, width).to(device)
    policy = Policy().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(training_steps):
        inputs, labels = images(batch)
        optimizer.zero_grad()
        F.cross_entropy(model(policy(inputs)), labels).backward()
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return FlatProblem(model, policy, *images(batch), *images(batch))


def contenders(setting: FlatProblem) -> tuple[dict[str, Callable[[], list[Tensor]]], dict[str, str]]:
    """Return the contenders, and the reasons why others are missing."""

    def ours(solver: Any, kind: Any, curvature: int | None = None) -> Callable[[], list[Tensor]]:
        def run() -> list[Tensor]:
            return list(hypergradient(setting.problem(curvature), solver, kind, check=False).grads)

        return run

    quarter = max(len(setting.images) // 4, 1)
    series = Neumann(STEPS, SCALE)
    found = {
        "madao Neumann, forward over reverse": ours(series, ForwardOverReverse()),
        "madao Neumann, double backward": ours(series, DoubleBackward()),
        "madao Neumann, finite difference, step 1e-5": ours(series, FiniteDifference()),
        "madao Neumann, finite difference, step 1e-2": ours(series, FiniteDifference(1e-2)),
        "madao Neumann, double backward, mixed forward": ours(series, MixedKind()),
        "madao Neumann, Hessian of a quarter batch": ours(series, ForwardOverReverse(), quarter),
        "madao Neumann, quarter batch, double backward": ours(series, MixedKind(), quarter),
        "madao identity (no products)": ours(Identity(SCALE), ForwardOverReverse()),
        "madao conjugate gradient, 5 steps": ours(ConjugateGradient(STEPS, 0.0, damping=1.0), ForwardOverReverse()),
        "madao Nystrom, rank 5": ours(Nystrom(STEPS, damping=1.0), ForwardOverReverse()),
        "madao unrolled, 5 steps": ours(Unrolled(STEPS, Momentum(SCALE)), ForwardOverReverse()),
    }
    missing = {}
    for name, build in PEERS.items():
        try:
            found[name] = build(setting)
        except ImportError as error:
            missing[name] = f"not installed: {error}"
    return found, missing


@dataclasses.dataclass(frozen=True)
class MixedKind:
    """Second derivatives with products by double backward, and the mixed term forward over reverse."""

    def products(self, *arguments: Any) -> Any:
        """Those of `DoubleBackward`."""
        return DoubleBackward().products(*arguments)

    def directional(self, *arguments: Any) -> Any:
        """That of `ForwardOverReverse`."""
        return ForwardOverReverse().directional(*arguments)


def _pure_losses(setting: FlatProblem) -> tuple[list[str], list[Tensor], Callable[..., Tensor], Callable[..., Tensor]]:
    inner, outer = FunctionalModel(setting.model, "train"), FunctionalModel(setting.model, "eval")
    names = list(inner.params)

    def inner_loss(params: Any, images: Tensor) -> Tensor:
        return F.cross_entropy(inner(dict(zip(names, params, strict=True)), images), setting.labels)

    def outer_loss(params: Any) -> Tensor:
        logits = outer(dict(zip(names, params, strict=True)), setting.validation)
        return F.cross_entropy(logits, setting.validation_labels)

    return names, [p.detach().requires_grad_() for p in inner.params.values()], inner_loss, outer_loss


def betty(setting: FlatProblem) -> Callable[[], list[Tensor]]:
    from betty.hypergradient.neumann import neumann

    _, params, inner_loss, outer_loss = _pure_losses(setting)

    def run() -> list[Tensor]:
        lower = types.SimpleNamespace(
            paths=[],
            config=types.SimpleNamespace(neumann_iterations=STEPS, neumann_alpha=SCALE),
            cur_batch=None,
            training_step_exec=lambda _: inner_loss(params, setting.augmented()),
            trainable_parameters=lambda: params,
        )
        upper = types.SimpleNamespace(trainable_parameters=lambda: list(setting.policy.parameters()))
        vector = torch.autograd.grad(outer_loss(params), params)
        return list(neumann(vector, lower, upper))

    return run


def hypertorch(setting: FlatProblem) -> Callable[[], list[Tensor]]:
    here = sys.path.pop(0)  # this file has the name of their package
    try:
        from hypergrad.hypergradients import fixed_point
    finally:
        sys.path.insert(0, here)

    _, params, inner_loss, outer_loss = _pure_losses(setting)

    def run() -> list[Tensor]:
        augmented = setting.augmented()

        def step(weights: list[Tensor], _: Any) -> list[Tensor]:
            gradients = torch.autograd.grad(inner_loss(weights, augmented), weights, create_graph=True)
            return [w - SCALE * g for w, g in zip(weights, gradients, strict=True)]

        hyper = list(setting.policy.parameters())
        # K iterations sum K terms of the series.
        grads = fixed_point(params, hyper, STEPS + 1, step, lambda w, _: outer_loss(w), tol=0.0, set_grad=False)
        return list(grads)

    return run


def torchopt(setting: FlatProblem) -> Callable[[], list[Tensor]]:
    from torchopt.diff.implicit import custom_root
    from torchopt.linear_solve import solve_inv

    _, params, inner_loss, outer_loss = _pure_losses(setting)

    def optimality(weights: Any, images: Tensor) -> Any:
        return torch.func.grad(inner_loss)(weights, images)

    @custom_root(  # type: ignore[untyped-decorator]
        optimality, argnums=1, solve=solve_inv(ns=True, maxiter=STEPS, alpha=SCALE)
    )
    def solution(weights: Any, images: Tensor) -> Any:
        return tuple(w.detach().requires_grad_() for w in weights)

    def run() -> list[Tensor]:
        solved = solution(tuple(params), setting.augmented())
        return list(torch.autograd.grad(outer_loss(solved), list(setting.policy.parameters())))

    return run


PEERS: dict[str, Callable[[FlatProblem], Callable[[], list[Tensor]]]] = {
    "betty neumann": betty,
    "hypertorch fixed_point": hypertorch,
    "TorchOpt custom_root, Neumann": torchopt,
}


def cosine(first: list[Tensor], second: list[Tensor]) -> float:
    a, b = (torch.cat([g.flatten() for g in grads]).double() for grads in (first, second))
    return float(F.cosine_similarity(a, b, dim=0))


def peak_memory(work: Callable[[], Any]) -> float:
    """Return the peak of the MiB that a call allocates."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", metavar="FILE", type=Path)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and one round, to check that the script works"
    )
    arguments = parser.parse_args()
    gpu = arguments.device != "cpu"
    depth, width, batch, training_steps = (28, 2, 128, 300) if gpu else (10, 1, 32, 60)
    if arguments.quick:
        depth, width, batch, training_steps = 10, 1, 4, 2
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    setting = prepare(arguments.device, depth, width, batch, training_steps)
    exact = setting.exact()
    converged = hypergradient(setting.problem(), Neumann(STEPS, SCALE)).stats
    found, missing = contenders(setting)
    rows: dict[str, dict[str, Any]] = {}
    failed = {}
    for name, work in list(found.items()):
        try:
            rows[name] = {"cosine": cosine(work(), exact), "memory_mib": peak_memory(work) if gpu else None}
        except Exception as error:  # a peer's failure is a result, not a reason to stop
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            del found[name]
    for name, rate in rates(found, 1, 1 if arguments.quick else arguments.rounds, arguments.device).items():
        rows[name] |= {"ms": 1e3 / rate.median, "ms_quartiles": [1e3 / rate.high, 1e3 / rate.low]}
    best = rows["madao Neumann, forward over reverse"]["ms"]
    print(
        f"WideResNet-{depth}-{width}, batch {batch}, {arguments.device}, status {converged.status.name}, "
        f"residual {converged.residual:.4f}"
    )
    for name, row in rows.items():
        memory = f"{row['memory_mib']:8.0f} MiB" if gpu else ""
        print(f"  {name:<48}{row['ms']:9.1f} ms {row['ms'] / best:6.2f} × {memory}  cosine {row['cosine']:.6f}")
    for name, reason in (missing | failed).items():
        print(f"  {name:<48} {reason}")
    results = environment("torch", "betty-ml", "torchopt", "madao") | {
        "model": f"WideResNet-{depth}-{width}",
        "batch": batch,
        "steps": STEPS,
        "scale": SCALE,
        "rows": rows,
        "missing": missing | failed,
    }
    output = arguments.output
    if output is None and not arguments.quick:
        kind = "gpu" if gpu else "cpu"
        output = Path(__file__).parents[1] / "results" / f"hypergrad-{kind}.json"
    if output is not None:
        write(output, results)


if __name__ == "__main__":
    main()
