"""Measure each operation's influence along v and along other directions q.

    python benchmarks/hardness.py [--planted rotate,brightness,none] [--epochs 15] [--output FILE] [--figure FILE]

A network trains on digits under the uniform policy, until the policy would begin to learn. Then, at fixed weights, the
script measures the influence ⟨q, ∇θ ℓ⟩ of many augmented training images along

- v, the gradient of the validation loss (up to a factor, the paper's q),
- v without its part along training gradients at these weights (one gradient of many images; 16 of batches; and more
  gradients of fewer images),
- (F + λ)⁻¹ v, where F is the Gauss-Newton matrix of the training loss, by 60 steps of conjugate gradients.

It prints each operation's mean influence where it is applied, minus the mean of all, in deviations over single images.
The operation that makes the planted shift should come first.
"""

import argparse
import dataclasses
import functools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from measure import environment, write

from madao import Draw, Policy
from madao.cli.demo import demo_config
from madao.data import InMemoryImages
from madao.hypergrad import ConjugateGradient, Deflated, ForwardOverReverse, FunctionalModel, System, pytree
from madao.hypergrad.solvers.gradient_history import GradientHistory
from madao.training.builders.run import build_run
from madao.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
Vector = tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Network:
    """A trained network as a function of its parameters, in evaluation mode."""

    model: FunctionalModel
    params: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> "Network":
        """Return a network with its present weights."""
        return cls(FunctionalModel(model, "eval"), {name: value.detach() for name, value in model.named_parameters()})

    def outputs(self, params: Vector, batch: Vector) -> Tensor:
        """Return the logits of a batch of inputs and labels."""
        logits: Tensor = self.model(dict(zip(self.params, params, strict=True)), batch[0])
        return logits

    def of_outputs(self, outputs: Tensor, batch: Vector) -> Tensor:
        """Return the loss of each image."""
        return F.cross_entropy(outputs, batch[1], reduction="none")

    def losses(self, params: Vector, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return one value per image."""
        return self.of_outputs(self.outputs(params, (inputs, labels)), (inputs, labels))

    def gradient(self, inputs: Tensor, labels: Tensor) -> Vector:
        """Return the gradient of the mean loss."""
        found: Vector = torch.func.grad(lambda p: self.losses(p, inputs, labels).mean())(tuple(self.params.values()))
        return found

    def influences(self, direction: Vector, inputs: Tensor, labels: Tensor, part: int = 2000) -> Tensor:
        """Return ⟨q, ∇θ ℓ_b⟩ of every image, computed in parts."""
        point = tuple(self.params.values())
        return torch.cat(
            [
                torch.func.jvp(lambda *p, x=x, y=y: self.losses(p, x, y), point, direction)[1]
                for x, y in zip(inputs.split(part), labels.split(part), strict=True)
            ]
        )

    def deflated(self, v: Vector, batches: Sequence[tuple[Tensor, Tensor]]) -> Vector:
        """Return v without its part along the gradients of these batches."""
        gradients = [self.gradient(*batch) for batch in batches]
        rows = torch.stack([pytree.flat(gradient) for gradient in gradients[1:]])
        unit = (rows / rows.norm(dim=1, keepdim=True)).bfloat16()  # as they are remembered
        return Deflated(len(gradients)).solve(System(v, gradient=lambda: gradients[0]), GradientHistory(unit)).vector


def sample(inputs: Tensor, labels: Tensor, generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Return some images at random."""
    chosen = torch.randperm(len(inputs), generator=generator, device=generator.device)[:count]
    return inputs[chosen], labels[chosen]


def by_operation(influence: Tensor, draw: Draw, policy: Policy) -> dict[str, float]:
    """Return each operation's mean where it is applied, minus the mean of all, in deviations over images."""
    centred = (influence - influence.mean()) / influence.std()
    return {
        operation.name: float(centred[((draw.choice == index) & draw.applied).any(0)].mean())
        for index, operation in enumerate(policy.operations)
    }


def measured(planted: str, epochs: int, copies: int, seed: int, steps: int) -> dict[str, Any]:
    """Return every operation's influence along every q."""
    with tempfile.TemporaryDirectory() as folder:
        config = demo_config("uniform", planted, seed, epochs, Path(folder))  # type: ignore[arg-type]
        constant = dataclasses.replace(config.optimizer, schedule="constant")
        run = build_run(dataclasses.replace(config, evaluate_every=epochs, optimizer=constant))
        Trainer(run).fit()
    network = Network.of(run.network)
    train, validation, normalise = run.splits.train, run.splits.validation, run.base_augmentation.normalise
    assert isinstance(train, InMemoryImages)
    assert isinstance(validation, InMemoryImages)
    policy, generator = Policy(seed=seed + 1), torch.Generator().manual_seed(seed)
    floats, labels = train.images.float().div(255).repeat(copies, 1, 1, 1), train.labels.repeat(copies)
    with torch.no_grad():
        draw = policy.sample(floats)
        inputs = normalise(policy.augment(floats, draw))
        again = normalise(policy(floats))  # q must know nothing of the draws that are scored
    v = network.gradient(normalise(validation.images.float() / 255), validation.labels)

    some = functools.partial(sample, again, labels, generator)
    large = some(3000)
    gradient = network.gradient(*large)

    def deflated(count: int, size: int) -> Vector:
        """Return v without its part along `count` gradients of `size` images each."""
        return network.deflated(v, [some(size) for _ in range(count)])

    curvature = ForwardOverReverse().gauss_newton(network, tuple(network.params.values()), large)
    directions: dict[str, Vector] = {
        "v": v,
        "v without the training gradient": Deflated(1, damping=1e-6).solve(System(v, gradient=lambda: gradient)).vector,
        "v without 16 gradients of batches": deflated(16, 384),
        "v without 64 gradients of 24 images": deflated(64, 24),
        "v without 256 gradients of 6 images": deflated(256, 6),
    }
    residuals = {}
    for damping in (0.1, 0.01):
        name, solver = f"(Gauss-Newton + {damping})⁻¹ v", ConjugateGradient(steps, tolerance=1e-3, damping=damping)
        solution = solver.solve(System(v, curvature))
        directions[name], residuals[name] = solution.vector, float(solution.norms[-1] / solution.norms[0])
    rows: dict[str, Any] = {}
    for name, direction in directions.items():
        rows[name] = by_operation(network.influences(direction, inputs, labels), draw, policy)
    cosine = float(F.cosine_similarity(pytree.flat(v), pytree.flat(gradient), dim=0))
    return {"cosine_of_v_and_training_gradient": cosine, "residuals": residuals, "influence": rows}


def draw_figure(results: dict[str, Any], path: Path) -> None:
    """Draw one panel for each planted shift."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = {
        "v": "#D55E00",
        "v without 16 gradients of batches": "#0072B2",
        "v without 256 gradients of 6 images": "#56B4E9",
        "(Gauss-Newton + 0.01)⁻¹ v": "#999999",
    }
    figure, axes = plt.subplots(len(results), 1, figsize=(9, 3.1 * len(results)), squeeze=False)
    for axis, (planted, found) in zip(axes[:, 0], results.items(), strict=True):
        rows = found["influence"]
        order = sorted(rows["v"], key=lambda name: -rows["v without 16 gradients of batches"][name])
        for place, (name, colour) in enumerate(shown.items()):
            at = [index + 0.2 * (place - 1.5) for index in range(len(order))]
            axis.bar(at, [rows[name][operation] for operation in order], 0.2, color=colour, label=name)
        axis.set_xticks(range(len(order)), order, rotation=35, ha="right")
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set_title(f"planted: {planted}", loc="left")
        axis.set_ylabel("influence (deviations)")
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="upper center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.2 / len(results)))
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", default="rotate,brightness,none")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--copies", type=int, default=16, help="number of draws of every training image")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60, help="number of steps of conjugate gradients")
    parser.add_argument("--output", metavar="FILE", type=Path)
    parser.add_argument("--figure", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for planted in arguments.planted.split(","):
        found[planted] = measured(planted, arguments.epochs, arguments.copies, arguments.seed, arguments.steps)
        print(f"{planted}: cosine of v and training gradient {found[planted]['cosine_of_v_and_training_gradient']:.3f}")
        for name, row in found[planted]["influence"].items():
            best = sorted(row.items(), key=lambda item: -item[1])[:4]
            print(f"  {name:<36}", "  ".join(f"{operation} {value:+.2f}" for operation, value in best), flush=True)
    if arguments.output is not None:
        settings = {"epochs": arguments.epochs, "copies": arguments.copies, "seed": arguments.seed}
        write(arguments.output, environment("torch", "madao") | {"settings": settings, "planted": found})
    if arguments.figure is not None:
        draw_figure(found, arguments.figure)


if __name__ == "__main__":
    main()
