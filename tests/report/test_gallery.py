import base64
import io

import numpy as np
import torch
from PIL import Image

from madao import PolicySpec
from madao.ops import OPERATIONS
from madao.policy import OperationParams
from madao.report.gallery import Tile, gallery

SPEC = PolicySpec(
    (OPERATIONS["Invert"], OPERATIONS["TranslateX"]),
    (
        (OperationParams(0.3, 1.0), OperationParams(0.7, 0.5, 0.25)),
        (OperationParams(1.0, 0.0), OperationParams(0.0, 1.0, 0.45)),
    ),
)
SAMPLES = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 12), dtype=np.uint8)


def pixels(tile: Tile) -> np.ndarray:
    kind, data = tile.source.split(",")
    assert kind.startswith("data:image/")
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        return np.asarray(picture.convert("RGB")).transpose(2, 0, 1)


def test_operations_are_shown_likeliest_first_at_their_own_strength() -> None:
    shown = gallery(SPEC, SAMPLES, images=3)
    first, second = shown.stages
    assert [row.heading for row in first] == ["TranslateX", "Invert"]
    assert [row.heading for row in second] == ["Invert", "TranslateX"]
    assert first[0].note == "±25 % of the width; drawn 70.0 %, then applied 50 %"
    assert first[1].note == "drawn 30.0 %, then applied 100 %"
    captions = [tile.caption for tile in first[0].tiles]
    assert captions == [f"TranslateX {sign}25 % of the width" for sign in ("", "−", "")]
    assert np.array_equal(pixels(first[0].tiles[0])[:, :, :9], SAMPLES[0][:, :, 3:])
    assert np.array_equal(pixels(first[0].tiles[1])[:, :, 3:], SAMPLES[1][:, :, :9])
    assert np.array_equal(pixels(first[1].tiles[2]), 255 - SAMPLES[2])
    assert [pixels(tile).tolist() for tile in shown.originals] == SAMPLES[:3].tolist()
    assert shown.pixelated


def test_draws_say_what_was_done() -> None:
    shown = gallery(SPEC, SAMPLES, images=3, draws=12, seed=1)
    seen = set()
    for number, row in enumerate(shown.draws):
        assert row.tiles[0].caption == "original"
        for tile in row.tiles[1:]:
            seen.add(tile.caption)
            image = torch.from_numpy(SAMPLES[number])
            expected = {"unchanged": image, "Invert": 255 - image}.get(tile.caption)
            if expected is not None:
                assert np.array_equal(pixels(tile), expected.numpy())
    assert seen == {"unchanged", "Invert", "TranslateX 25 % of the width", "TranslateX −25 % of the width"}


def test_large_images_are_scaled_down_and_grey_ones_shown() -> None:
    shown = gallery(SPEC, np.full((2, 1, 200, 300), 77, np.uint8))
    assert pixels(shown.originals[0]).shape == (3, 75, 112)
    assert abs(int(pixels(shown.originals[0]).mean()) - 77) <= 1
    assert not shown.pixelated
