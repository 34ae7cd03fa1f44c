from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import madao
from madao.policy import ClassPolicy
from madao.policy.display.contact_sheet import arrange

IMAGES = torch.randint(0, 256, (2, 3, 20, 30), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
ALWAYS_INVERT = madao.Policy(stages=1, operations=["Invert"])
with torch.no_grad():
    ALWAYS_INVERT.application_logits.fill_(50.0)


def tile(sheet: Image.Image, row: int, column: int, columns: int, rows: int = 2) -> np.ndarray:
    """One image of a sheet of images of 20 × 30 pixels."""
    left = 8 + column * ((sheet.width - 8) // columns)
    top = 8 + row * ((sheet.height - 8) // rows)
    return np.asarray(sheet)[top : top + 20, left : left + 30].transpose(2, 0, 1)


def test_each_row_shows_an_original_and_draws() -> None:
    sheet = madao.preview(ALWAYS_INVERT, IMAGES, columns=2)
    for row, image in enumerate(IMAGES.numpy()):
        assert np.array_equal(tile(sheet, row, 0, 3), image)
        for column in (1, 2):
            assert np.array_equal(tile(sheet, row, column, 3), 255 - image)


def test_images_come_in_every_usual_form() -> None:
    expected = np.asarray(madao.preview(ALWAYS_INVERT, IMAGES, columns=1))
    pil = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in IMAGES]
    forms: list[Any] = [IMAGES / 255, [*IMAGES], pil, [IMAGES[0], pil[1]]]
    for images in forms:
        assert np.array_equal(np.asarray(madao.preview(ALWAYS_INVERT, images, columns=1)), expected)
    grey = [image.convert("L") for image in pil]
    assert np.array_equal(tile(madao.preview(ALWAYS_INVERT, grey, columns=1), 0, 0, 2)[0], np.asarray(grey[0]))


def test_policies_come_as_modules_specs_names_and_files(tmp_path: object) -> None:
    path = f"{tmp_path}/policy.json"
    ALWAYS_INVERT.spec().save(path)
    of_classes = ClassPolicy(["a", "b"], stages=1, operations=["Invert"])
    expected = np.asarray(madao.preview(ALWAYS_INVERT, IMAGES))
    for policy in (ALWAYS_INVERT.spec(), path):
        assert np.array_equal(np.asarray(madao.preview(policy, IMAGES)), expected)
    for other in ("trivialaugment", madao.RandAugment(), of_classes, of_classes.spec()):
        assert madao.preview(other, columns=1).height > 128


def test_the_seed_decides_and_the_policy_keeps_its_own_random_state() -> None:
    policy = madao.Policy()
    first, again, other = (np.asarray(madao.preview(policy, IMAGES, seed=seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert first.shape != other.shape or not np.array_equal(first, other)
    assert torch.equal(policy(IMAGES), madao.Policy()(IMAGES))


@pytest.mark.parametrize(
    ("images", "columns", "error"),
    [
        ([IMAGES[0], IMAGES[1, :, :10]], 1, ValueError),
        ([], 1, ValueError),
        (IMAGES[0], 1, ValueError),
        (IMAGES * 2.0, 1, ValueError),
        (IMAGES, 0, ValueError),
    ],
)
def test_other_images_are_refused(images: object, columns: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        madao.preview("uniform", images, columns)  # type: ignore[arg-type]


def test_captions_fit_beside_each_other_and_can_be_written_in_the_font() -> None:
    blank = torch.zeros(3, 20, 20, dtype=torch.uint8)
    narrow, wide = (arrange([[(blank, text), (blank, "x")]]).width for text in ("x", "TranslateX -28 % of the width"))
    assert narrow == 2 * 28 + 8
    assert wide > 2 * 140
    minus, hyphen = (np.asarray(arrange([[(blank, text)]])) for text in ("−", "-"))
    assert np.array_equal(minus, hyphen)
