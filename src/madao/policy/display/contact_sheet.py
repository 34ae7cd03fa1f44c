"""The contact sheet of a policy: originals beside augmented images."""

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from madao.ops.checks import check_images
from madao.policy.base import AugmentationPolicy
from madao.policy.describe import steps
from madao.policy.display.pictures import sample_picture, to_pil
from madao.policy.frozen import FrozenPolicy
from madao.policy.learned import Policy
from madao.policy.registry import load_policy
from madao.policy.spec import PolicySpec

if TYPE_CHECKING:
    from PIL import Image

_GAP = 8
_LINE = 14


def preview(
    policy: "AugmentationPolicy | PolicySpec | str | os.PathLike[str]",
    images: "Tensor | Sequence[Tensor | Image.Image] | None" = None,
    columns: int = 6,
    seed: int = 0,
) -> "Image.Image":
    """Draw a sheet of augmented images: each row shows an original and draws of the policy, with captions.

    Args:
        policy: A policy, its spec, its name, its file or its run directory. A policy of each class shows the part that
            classes share; `spec.of_class(name)` shows one class.
        images: A batch `[B, C, H, W]`, uint8 or float in [0, 1], or a list of such images or PIL images of one size.
            By default a drawn landscape.
        columns: Number of draws for each image.
        seed: Seed of the draws.

    Example:
        >>> madao.preview("runs/photos", images[:4]).save("sheet.png")
    """
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    if isinstance(policy, str | os.PathLike):
        policy = load_policy(policy)
    if isinstance(policy, Policy | FrozenPolicy):
        policy = policy.spec()
    if isinstance(policy, PolicySpec):
        policy = FrozenPolicy(policy.of_class(None) if policy.classes else policy)
    return contact_sheet(policy, sample_picture(128)[None] if images is None else _batch(images), columns, seed)


def contact_sheet(policy: AugmentationPolicy, batch: Tensor, columns: int, seed: int) -> "Image.Image":
    """Draw a sheet of uint8 images `[B, C, H, W]`, one row each: the original and `columns` draws of a policy."""
    repeated = batch.repeat_interleave(columns, 0)
    draw = policy.sample(repeated, torch.Generator().manual_seed(seed))
    augmented = policy.augment(repeated, draw)
    captions = ["\n".join(steps(policy.operations, draw, i)) or "unchanged" for i in range(len(repeated))]
    rows = [
        [(original, "original"), *((augmented[i], captions[i]) for i in range(row * columns, (row + 1) * columns))]
        for row, original in enumerate(batch)
    ]
    return arrange(rows)


def arrange(rows: Sequence[Sequence[tuple[Tensor, str]]]) -> "Image.Image":
    """Draw images, uint8 `[C, H, W]` of one size, in rows, each with its caption below."""
    from PIL import Image, ImageDraw, ImageFont

    # Pillow's default font has no minus sign, only the hyphen.
    rows = [[(image, caption.replace("−", "-")) for image, caption in row] for row in rows]
    side, width = rows[0][0][0].shape[-2:]
    lines = max(caption.count("\n") + 1 for row in rows for _, caption in row)
    font = ImageFont.load_default(size=11)
    longest = max(font.getlength(line) for row in rows for _, caption in row for line in caption.split("\n"))
    width = max(width, math.ceil(longest)) + _GAP
    height = side + lines * _LINE + _GAP + 4
    sheet = Image.new("RGB", (len(rows[0]) * width + _GAP, len(rows) * height + _GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for y, row in enumerate(rows):
        for x, (image, caption) in enumerate(row):
            left, top = x * width + _GAP, y * height + _GAP
            sheet.paste(to_pil(image), (left, top))
            pen.multiline_text((left, top + side + 2), caption, fill="black", font=font, spacing=2)
    return sheet


def _batch(images: "Tensor | Sequence[Tensor | Image.Image]") -> Tensor:
    """Return images as a uint8 batch."""
    if not isinstance(images, Tensor):
        found = [image if isinstance(image, Tensor) else _from_pil(image) for image in images]
        shapes = sorted({tuple(image.shape) for image in found})
        if len(shapes) != 1:
            raise ValueError(f"images must have one size, got {', '.join(map(str, shapes)) or 'no image'}")
        images = torch.stack(found)
    check_images(images)
    images = images.detach().cpu()
    return images if images.dtype == torch.uint8 else (255 * images.float()).round().clamp(0, 255).to(torch.uint8)


def _from_pil(image: "Image.Image") -> Tensor:
    pixels = np.array(image if image.mode == "L" else image.convert("RGB"))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)
