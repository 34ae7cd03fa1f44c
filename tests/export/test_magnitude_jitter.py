"""Exports of policies whose magnitudes vary draw them by the same law."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from madao.export.single_image import ImageAugmenter
from madao.policy import ClassPolicy, FrozenPolicy, ImagePolicy, PolicySpec
from tests.export.test_image_conditional import IMAGES, picture
from tests.export.test_law import COUNT, TARGETS, close, json_draws
from tests.export.test_python import test_it_looks_as_if_a_person_had_written_it as assert_tidy
from tests.helpers.exported import load, uneven, write

SPEC = dataclasses.replace(uneven(), magnitude_jitter=0.6)


@pytest.mark.parametrize("target", [*TARGETS, "json"])
def test_strengths_lie_evenly_below_the_strongest(target: str, tmp_path: Path) -> None:
    draws = list(
        json_draws(write(SPEC, target, tmp_path)) if target == "json" else TARGETS[target](load(SPEC, target, tmp_path))
    )
    assert len(draws) == COUNT
    parts, positive, signed = [], [], []
    for number, stage in enumerate(SPEC.stages):
        for operation, entry in zip(SPEC.operations, stage, strict=True):
            if operation.range is None or entry.magnitude is None:
                continue
            rows = [draw[number] for draw in draws if draw[number][0] == operation.name]
            assert close(len(rows), COUNT, entry.selection)
            neutral = operation.range[0]
            strengths = (np.array([value for _, _, value in rows], dtype=float) - neutral) / (entry.magnitude - neutral)
            parts.append(np.abs(strengths))
            if operation.signed:
                positive.append(strengths > 0)
                signed.append(np.abs(strengths))
            else:
                assert (strengths >= 0).all()
    assert stats.kstest(np.concatenate(parts)[:COUNT], "uniform", (0.4, 0.6)).pvalue > 1e-3
    signs = np.concatenate(positive)
    assert close(signs.sum(), len(signs), 0.5)
    assert abs(np.corrcoef(signs, np.concatenate(signed))[0, 1]) < 0.04, "neither knows of the other"


def test_one_image_is_drawn_for_as_a_batch_is() -> None:
    engine = ImageAugmenter(SPEC)
    assert engine.uniforms == 12
    assert ImageAugmenter(uneven()).uniforms == 9
    for first in np.linspace(0.05, 0.95, 10):
        varied = engine.steps([first, 0.0, 0.7, 0.25] * 3)
        for one, other in zip(varied, ImageAugmenter(uneven()).steps([first, 0.0, 0.7] * 3), strict=True):
            assert (*one[:2], one.sign) == (*other[:2], other.sign)
            assert one.magnitude == pytest.approx(other.magnitude * (1 - 0.6 * 0.25))
    image = torch.randint(0, 256, (3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    batch = FrozenPolicy(SPEC).augment(image[None], engine.draw([varied]))
    assert torch.equal(engine.augment(image, varied), batch[0])


@pytest.mark.parametrize("kind", ["class", "image"])
def test_the_file_without_madao_varies_for_classes_and_images_too(kind: str, tmp_path: Path) -> None:
    spec: PolicySpec = (
        ClassPolicy(2, 1, magnitude_jitter=1.0) if kind == "class" else ImagePolicy(1, magnitude_jitter=1.0)
    ).spec()
    module = load(spec, "python", tmp_path)
    argument = 1 if kind == "class" else picture(IMAGES[0])
    found = [step for _ in range(1500) for step in module.transform.draw(argument)]
    turned = [abs(value) for function, _, value in found if function.__name__ == "rotate"]
    assert len(turned) > 70
    entry = spec.stages[0][[operation.name for operation in spec.operations].index("Rotate")]
    assert stats.kstest(turned, "uniform", (0, entry.magnitude)).pvalue > 1e-3
    assert_tidy(spec, tmp_path)
