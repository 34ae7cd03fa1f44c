"""`madao preview`: draw sample images under a policy."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from madao.cli import say
from madao.cli.export import of_label
from madao.cli.parser import call
from madao.data.datasets.folder import SUFFIXES
from madao.data.image_files import read_image
from madao.data.image_formats import MAX_PIXELS, limit_pixels, open_image
from madao.errors import UserError
from madao.files import replacing
from madao.policy import FrozenPolicy, load_policy
from madao.policy.display.contact_sheet import contact_sheet
from madao.text import counted


def command(arguments: list[str]) -> None:
    """Run `madao preview`."""
    call(preview, "preview", arguments)


def preview(
    policy: str = "uniform",
    images: str | None = None,
    output: str = "preview.png",
    rows: int = 4,
    columns: int = 6,
    size: int = 128,
    seed: int = 0,
    label: str | None = None,
) -> None:
    """Write a sheet of images: each row shows an original and draws of the policy.

    Args:
        policy: Policy to show: a policy.json, a run directory, uniform, randaugment, trivialaugment,
            trivialaugment-normal, autoaugment-cifar10, autoaugment-svhn or autoaugment-imagenet.
        images: Folder of images, or one image. By default two photographs from scikit-learn.
        output: PNG file to write.
        rows: Number of images.
        columns: Number of draws for each image.
        size: Side of each tile in pixels; images are cropped to a square and scaled.
        seed: Seed of the draws.
        label: Class whose policy is shown, or shared for the part that classes or images share.
    """
    for name, value in (("rows", rows), ("columns", columns), ("size", size)):
        if value < 1:
            raise UserError(f"--{name} must be at least 1, got {value}")
    try:
        augment = load_policy(policy, seed)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None
    if isinstance(augment, FrozenPolicy) and label is not None:
        augment = FrozenPolicy(of_label(augment.spec(), label), seed)
    if label is None and augment.classes:
        raise UserError(
            f"{policy} has a policy for each class; add --label {augment.classes[0]}, for example, or --label shared"
        )
    batch = _load(images, rows, size)
    try:
        sheet = contact_sheet(augment, batch, columns, seed)
    except ValueError as error:  # for example, a fill for another number of channels
        raise UserError(f"{policy}: {error}") from None
    try:
        with replacing(Path(output).resolve()) as file:
            sheet.save(file, format="PNG")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror or error}") from None
    say(f"wrote {output}: {counted(len(batch), 'image')}, {counted(columns, 'draw')} each, policy {policy}")


def _load(source: str | None, count: int, size: int) -> Tensor:
    """Return `count` square images as a batch of uint8."""
    pictures = _sample_pictures(count) if source is None else _read_pictures(Path(source), count)
    squares = [ImageOps.fit(picture.convert("RGB"), (size, size), Image.Resampling.BICUBIC) for picture in pictures]
    return torch.from_numpy(np.stack([np.asarray(square) for square in squares])).permute(0, 3, 1, 2).contiguous()


def _sample_pictures(count: int) -> list[Image.Image]:
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(array) for array in load_sample_images().images]
    corners = [(160, 60), (60, 20), (300, 130), (200, 0)]
    squares = []
    for number in range(count):
        photograph, (x, y) = photographs[number % 2], corners[number // 2 % len(corners)]
        squares.append(photograph.crop((x, y, x + 290, y + 290)))
    return squares


def _read_pictures(source: Path, count: int) -> list[Image.Image]:
    if not source.exists():
        raise UserError(f"no file or folder {source}")
    paths = [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not paths:
        raise UserError(f"no image under {source}; looked for {', '.join(sorted(SUFFIXES))}")
    # Spread over the folder, so that the sheet shows several classes.
    chosen = [paths[i * len(paths) // count] for i in range(count)] if len(paths) >= count else paths
    pictures = []
    for path in chosen:
        try:
            with open_image(read_image(path)) as picture:
                limit_pixels(picture, MAX_PIXELS)
                pictures.append(picture.convert("RGB"))
        except Exception as error:  # Pillow raises errors of many types
            raise UserError(f"cannot read {path} as an image ({error}); remove or replace it") from None
    return pictures
