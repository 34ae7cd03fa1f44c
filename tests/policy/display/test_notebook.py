import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

import madao
from madao.ops import OPERATIONS
from madao.policy import ClassPolicy, FrozenPolicy, ImagePolicy, OperationParams
from madao.policy.display.pictures import data_url, sample_picture

SPEC = madao.PolicySpec(
    (OPERATIONS["Invert"], OPERATIONS["Rotate"]),
    (
        (OperationParams(0.25, 1.0), OperationParams(0.75, 0.5, 21.0)),
        (OperationParams(0.5, 0.125), OperationParams(0.5, 1.0, 7.5)),
    ),
)


def test_the_table_holds_every_number_of_the_policy() -> None:
    table = SPEC._repr_html_()
    rows = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    assert [re.findall(r">(Invert|Rotate)<", row) for row in rows] == [["Rotate"], ["Invert"]]
    assert [re.findall(r"([\d.]+) %<br>", row) for row in rows] == [["75.0", "50.0"], ["25.0", "50.0"]]
    assert re.findall(r"<small>(.*?)</small>", rows[0]) == ["±21°, applied 50 %", "±7.5°, applied 100 %"]
    assert re.findall(r"<small>(.*?)</small>", rows[1]) == ["applied 100 %", "applied 12 %"]


def test_pictures_show_the_operation_at_the_strength_of_its_likeliest_stage() -> None:
    sources = re.findall(r'src="(.*?)"', SPEC._repr_html_())
    original = sample_picture(48)[None]
    for source, operation, magnitude in zip(sources, ("Rotate", "Invert"), (0.7, 0.0), strict=True):
        with Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))) as picture:
            shown = np.asarray(picture)
        expected = OPERATIONS[operation](original, torch.tensor([magnitude]), torch.ones(1))[0]
        assert np.array_equal(shown, expected.permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    "policy",
    [madao.Policy(), FrozenPolicy(SPEC), ClassPolicy(["<a>", "b"]), ImagePolicy()],
    ids=lambda p: type(p).__name__,
)
def test_policies_show_their_spec(policy: madao.Policy) -> None:
    assert policy._repr_html_() == policy.spec()._repr_html_()
    assert "<a>" not in policy._repr_html_()
    assert ("shared part" in policy._repr_html_()) == isinstance(policy, ClassPolicy | ImagePolicy)


def test_the_figure_has_a_bar_for_each_probability() -> None:
    (axis,) = SPEC.plot().axes
    widths = [[bar.get_width() for bar in bars] for bars in axis.containers]
    # The figure draws from the bottom: the most frequent operation comes last.
    assert np.allclose(widths, [[0.25, 0.75], [0.25, 0.375], [0.5, 0.5], [0.0625, 0.5]])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["Invert", "Rotate, ±21°"]


def test_large_pictures_are_scaled_down_and_small_ones_are_exact() -> None:
    small, large = (data_url(sample_picture(side)) for side in (48, 300))
    assert small.startswith("data:image/png")
    with Image.open(io.BytesIO(base64.b64decode(large.split(",")[1]))) as picture:
        assert (picture.format, picture.size) == ("JPEG", (112, 112))
