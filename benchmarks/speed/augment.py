"""Measure images per second of augmentation with two operations an image: madao, torchvision and kornia.

    python benchmarks/speed/augment.py [--device cuda]

Every contender augments the same photographs with RandAugment, n = 2, at magnitude 0.6, on all cores that torch uses.
madao and torchvision draw operation, sign and magnitude for each image. kornia draws one operation for a whole batch,
which is less work and a weaker augmentation. By default, torchvision samples geometric operations by nearest neighbour,
while madao and kornia are always bilinear. So torchvision is measured both ways, on tensors and on PIL images. On a
GPU, madao is measured as an ordinary call and as a CUDA graph, each with the draw.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from measure import Rate, environment, rates, write
from sklearn.datasets import load_sample_images
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

import madao

SETTINGS = {"cpu": ((32, 1024), (224, 64)), "cuda": ((32, 1024), (224, 256))}
LEVEL = 18  # of torchvision's 30 and kornia's 30: magnitude 0.6


def photographs(size: int, count: int) -> Tensor:
    """Return random crops of scikit-learn's sample photographs, uint8."""
    sources = [torch.from_numpy(image.copy()).permute(2, 0, 1) for image in load_sample_images().images]
    generator = torch.Generator().manual_seed(0)
    pieces = []
    for number in range(count):
        source = sources[number % len(sources)]
        y, x = (int(torch.randint(0, side - size + 1, (), generator=generator)) for side in source.shape[1:])
        pieces.append(source[:, y : y + size, x : x + size])
    return torch.stack(pieces)


def each(transform: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    return [transform(item) for item in items]


def contenders(images: Tensor) -> dict[str, Callable[[], Any]]:
    """Return all contenders by name."""
    floats = images / 255
    magnitude = LEVEL / 30
    ours, learned = madao.RandAugment(2, magnitude).to(images.device), madao.Policy().to(images.device)
    found: dict[str, Callable[[], Any]] = {
        "madao RandAugment, uint8": lambda: ours(images),
        "madao RandAugment, float32": lambda: ours(floats),
        "madao Policy (fresh), uint8": lambda: learned(images),
    }
    if images.is_cuda:
        found["madao RandAugment, uint8, CUDA graph"] = captured(ours, images)
        found["madao RandAugment, float32, CUDA graph"] = captured(ours, floats)
        bilinear = v2.RandAugment(2, LEVEL, interpolation=InterpolationMode.BILINEAR)
        found["torchvision tensor, per image, bilinear"] = functools.partial(each, bilinear, images)
        return found | kornia(floats)
    pictures = [v2.functional.to_pil_image(image) for image in images]
    for mode in (InterpolationMode.NEAREST, InterpolationMode.BILINEAR):
        theirs = v2.RandAugment(2, LEVEL, interpolation=mode)
        label = f"per image, {mode.value}"
        found[f"torchvision tensor, {label}"] = functools.partial(each, theirs, images)
        found[f"torchvision PIL, {label}"] = functools.partial(each, theirs, pictures)
    return found | kornia(floats)


def kornia(floats: Tensor) -> dict[str, Callable[[], Any]]:
    """Return kornia's contender, if it is installed."""
    try:
        from kornia.augmentation.auto import RandAugment
    except ImportError:
        return {}
    policy = RandAugment(n=2, m=LEVEL)
    return {"kornia, one operation a batch, float32": lambda: policy(floats)}


def captured(policy: madao.RandAugment, images: Tensor) -> Callable[[], None]:
    """Record the draw and its application as one CUDA graph: each replay draws anew."""
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(policy.generator(images.device))
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            policy(images)
    torch.cuda.current_stream().wait_stream(aside)
    with torch.cuda.graph(graph):
        kept = policy(images)
    return lambda kept=kept: graph.replay()  # type: ignore[misc] # the graph writes to what it returned


def table(size: int, batch: int, found: dict[str, Rate]) -> str:
    """Format the results, with the ratio of madao's rate to each."""
    first = next((name for name in found if "graph" in name), "madao RandAugment, uint8")
    ours = found[first].median
    lines = [f"{size} px, batch {batch}: images/s (quartiles), {first} ÷ this"]
    for name, rate in found.items():
        lines.append(f"  {name:<42}{rate.median:9,.0f} ({rate.low:,.0f}–{rate.high:,.0f}) {ours / rate.median:6.2f} ×")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="the JSON file; by default in benchmarks/results, none with --quick",
    )
    parser.add_argument(
        "--quick", action="store_true", help="small batches and one round, to check that the script works"
    )
    arguments = parser.parse_args()
    torch.manual_seed(0)  # the peers draw from the global state
    results: dict[str, Any] = environment("torch", "torchvision", "kornia", "pillow", "madao") | {"settings": []}
    for size, batch in SETTINGS[arguments.device]:
        batch, rounds = (16, 1) if arguments.quick else (batch, arguments.rounds)
        found = rates(contenders(photographs(size, batch).to(arguments.device)), batch, rounds, arguments.device)
        print(table(size, batch, found))
        named = {name: dataclasses.asdict(rate) for name, rate in found.items()}
        results["settings"].append({"size": size, "batch": batch, "rounds": rounds, "images_per_second": named})
    output = arguments.output
    if output is None and not arguments.quick:
        output = (
            Path(__file__).parents[1] / "results" / f"augment-{'gpu' if arguments.device == 'cuda' else 'cpu'}.json"
        )
    if output is not None:
        write(output, results)


if __name__ == "__main__":
    main()
