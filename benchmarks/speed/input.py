"""Measure images per second from JPEG files to RGB squares, by decoder, storage and number of workers.

    python benchmarks/speed/input.py [--device cuda]

The photographs are random pieces of scikit-learn's two, as JPEG files of quality 90. Decoders are measured in one
thread, by CPU time, on bytes in memory. They are Pillow alone (which decodes a JPEG at least twice as large at a half,
a quarter or an eighth), Pillow for decoding and torch for scaling, torchvision and torch, and madao's choice, the
faster one for each file. Then whole batches are measured by the clock as training gets them, from a folder and from
shards, with a warm disk cache. They include starting the workers, since every epoch does. Run it on a machine that is
otherwise idle; `load_average` records whether it was. With a GPU: batches that workers only read and nvJPEG decodes.
"""

import argparse
import dataclasses
import functools
import io
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Rate, environment, rates, write
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images
from torch import Tensor

from madao.data import DATASETS, Batches, DatasetRequest, GpuDecodedImages, Images, LazyImages
from madao.data.decoding import decode, jpegs, square

PHOTOGRAPHS = ((500, 375, 256), (500, 375, 146), (1024, 768, 256), (4000, 3000, 256))
"""Width, height, and the side they are brought to: 256 for a model that sees 224, 146 for one that sees 128."""


def photographs(width: int, height: int, count: int) -> list[bytes]:
    """Return JPEG files of random pieces, each scaled to the size."""
    sources = [Image.fromarray(image) for image in load_sample_images().images]
    generator = np.random.default_rng(0)
    found = []
    for number in range(count):
        left, top = generator.integers(0, (100, 67))
        file = io.BytesIO()
        piece = sources[number % 2].resize(
            (width, height), Image.Resampling.BICUBIC, (left, top, left + 480, top + 360)
        )
        piece.save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


def by_pillow(data: bytes, side: int) -> Tensor:
    with Image.open(io.BytesIO(data)) as image:
        image.draft(None, (side, side))
        upright = ImageOps.exif_transpose(image)
        fitted = ImageOps.fit(upright.convert("RGB"), (side, side), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1)


def by_pillow_and_torch(data: bytes, side: int) -> Tensor:
    with Image.open(io.BytesIO(data)) as image:
        image.draft(None, (side, side))
        return square(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1), side)


def by_torchvision(data: bytes, side: int) -> Tensor:
    return square(jpegs([torch.frombuffer(bytearray(data), dtype=torch.uint8)], torch.device("cpu"))[0], side)


DECODERS: dict[str, Callable[[bytes, int], Tensor]] = {
    "Pillow": by_pillow,
    "Pillow, scaled by torch": by_pillow_and_torch,
    "torchvision": by_torchvision,
    "madao": decode,
}


def decoders(files: list[bytes], side: int) -> dict[str, Callable[[], Any]]:
    """Return functions that decode all files into one batch, by name."""
    batch = torch.empty(len(files), 3, side, side, dtype=torch.uint8)

    def run(decoder: Callable[[bytes, int], Tensor]) -> None:
        for place, data in enumerate(files):
            batch[place] = decoder(data, side)

    return {name: functools.partial(run, decoder) for name, decoder in DECODERS.items()}


def write_folder(root: Path, files: list[bytes]) -> None:
    for number, data in enumerate(files):
        path = root / str(number % 2) / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def write_shards(root: Path, files: list[bytes]) -> None:
    root.mkdir(parents=True)
    for shard in range(4):
        with tarfile.open(root / f"train-{shard}.tar", "w") as tar:
            for number in range(shard, len(files), 4):
                for name, data in ((f"{number:06}.jpg", files[number]), (f"{number:06}.cls", b"%d" % (number % 2))):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def sources(root: Path, device: torch.device, side: int) -> Iterator[tuple[str, Images]]:
    for name in ("folder", "webdataset"):
        images = DATASETS[name](DatasetRequest(root / name, side=side)).train
        yield f"{name}, decoded by workers", images
        if device.type == "cuda" and isinstance(images, LazyImages):
            yield f"{name}, decoded by nvJPEG", GpuDecodedImages(images, device)


def epochs(images: Images, device: torch.device, workers: int) -> Callable[[], None]:
    """Return a function that reads an epoch of batches without using them."""
    batches = Batches(images, 64, device, workers=workers)

    def run() -> None:
        for _ in batches.epoch(0):
            pass

    return run


def table(title: str, found: dict[str, Rate]) -> str:
    lines = [f"{title}: images/s (quartiles)"]
    lines += [f"  {name:<44}{rate.median:9,.0f} ({rate.low:,.0f}–{rate.high:,.0f})" for name, rate in found.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--images", type=int, default=512, help="number of images in an epoch")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="the JSON file; by default in benchmarks/results, none with --quick",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few photographs and one round, to check that the script works"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in a worker
    rounds = 1 if arguments.quick else arguments.rounds
    results: dict[str, Any] = environment("torch", "torchvision", "pillow", "madao") | {"rounds": rounds}
    results |= {"load_average": os.getloadavg()[0], "decoders": [], "epochs": []}
    for width, height, side in PHOTOGRAPHS:
        files = photographs(width, height, 2 if arguments.quick else 24 if width < 2000 else 6)
        found = rates(decoders(files, side), len(files), rounds, clock=time.process_time)
        print(table(f"{width} × {height} to {side}, one thread", found))
        named = {name: dataclasses.asdict(rate) for name, rate in found.items()}
        results["decoders"].append(
            {"size": [width, height], "side": side, "rounds": rounds, "images_per_second": named}
        )
    width, height, side = PHOTOGRAPHS[0]
    device, count = torch.device(arguments.device), 64 if arguments.quick else arguments.images
    with tempfile.TemporaryDirectory() as folder:
        files = photographs(width, height, 32) * (count // 32)
        write_folder(Path(folder, "folder"), files)
        write_shards(Path(folder, "webdataset"), files)
        for workers in arguments.workers:
            contenders = {name: epochs(images, device, workers) for name, images in sources(Path(folder), device, side)}
            found = rates(contenders, len(files), max(1, rounds // 2), arguments.device)
            print(table(f"{width} × {height} to {side}, {workers} workers", found))
            named = {name: dataclasses.asdict(rate) for name, rate in found.items()}
            results["epochs"].append({"workers": workers, "images": len(files), "images_per_second": named})
    output = arguments.output
    if output is None and not arguments.quick:
        output = Path(__file__).parents[1] / "results" / f"input-{'gpu' if arguments.device == 'cuda' else 'cpu'}.json"
    if output is not None:
        write(output, results)


if __name__ == "__main__":
    main()
