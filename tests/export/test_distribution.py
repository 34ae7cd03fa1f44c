"""Every exported file draws with the policy's probabilities: ten thousand draws of each file are counted."""

import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from madao.export.single_image import ImageAugmenter
from madao.policy import ClassPolicy, FrozenPolicy, ImagePolicy, PolicySpec
from tests.helpers.exported import assert_tidy, load, uneven, write

COUNT = 10_000
SPEC = uneven()
JITTERED = dataclasses.replace(SPEC, magnitude_jitter=0.6)

Found = list[tuple[str, bool, float | None]]
"""For each stage of one image: operation, whether applied, the parameter in real units."""


def from_steps(steps: list[tuple[int, bool, float, float]]) -> Found:
    found: Found = []
    for choice, applied, magnitude, sign in steps:
        operation = SPEC.operations[choice]
        value = operation.value(torch.tensor(magnitude), torch.tensor(sign)).item() if operation.range else None
        found.append((operation.name, applied, value))
    return found


def torchvision(module: ModuleType) -> Iterator[Found]:
    torch.manual_seed(0)
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    return (from_steps(module.transform.make_params([image])["steps"][0]) for _ in range(COUNT))


def albumentations(module: ModuleType) -> Iterator[Found]:
    module.transform.set_random_seed(0)
    return (from_steps(module.transform.get_params()["steps"]) for _ in range(COUNT))


def kornia(module: ModuleType) -> Iterator[Found]:
    torch.manual_seed(0)
    params = module.transform.forward_parameters((COUNT, 3, 4, 4))
    fields = [params[name].tolist() for name in ("choice", "applied", "magnitude", "sign")]
    return (from_steps(list(zip(*rows, strict=True))) for rows in zip(*fields, strict=True))


def timm(module: ModuleType) -> Iterator[Found]:
    torch.manual_seed(0)
    return (from_steps(module.transform.sample()) for _ in range(COUNT))


def python(module: ModuleType) -> Iterator[Found]:
    names = {operation.name.lower(): operation.name for operation in SPEC.operations}
    transform = module.PolicyTransform(random.Random(0))
    for _ in range(COUNT):
        found: Found = []
        for function, applied, value in transform.draw():
            name = names[function.__name__.replace("_", "")]
            has_magnitude = any(op.name == name and op.range for op in SPEC.operations)
            found.append((name, applied, value if has_magnitude else None))
        yield found


TARGETS: dict[str, Callable[[ModuleType], Iterator[Found]]] = {
    function.__name__: function for function in (torchvision, albumentations, kornia, timm, python)
}


def json_draws(path: Path) -> Iterator[Found]:
    draw = FrozenPolicy(PolicySpec.load(path), seed=0).sample(torch.zeros(COUNT, 1, 2, 2))
    fields = [getattr(draw, name).T.tolist() for name in ("choice", "applied", "magnitude", "sign")]
    return (from_steps(list(zip(*rows, strict=True))) for rows in zip(*fields, strict=True))


def draws_of(spec: PolicySpec, target: str, folder: Path) -> list[Found]:
    if target == "json":
        found = list(json_draws(write(spec, target, folder)))
    else:
        found = list(TARGETS[target](load(spec, target, folder)))
    assert len(found) == COUNT
    return found


def close(count: float, of: int, probability: float) -> bool:
    """Within five standard deviations, and exactly so where nothing is left to chance."""
    return abs(count - of * probability) <= 5 * math.sqrt(of * probability * (1 - probability)) + 1e-9


@pytest.mark.parametrize("target", [*TARGETS, "json"])
def test_exported_files_draw_with_the_probabilities_of_the_policy(target: str, tmp_path: Path) -> None:
    draws = draws_of(SPEC, target, tmp_path)
    total_signs = []
    for number, stage in enumerate(SPEC.stages):
        column = [draw[number] for draw in draws]
        shares = np.array([entry.selection for entry in stage])
        shares = shares / shares.sum()
        for operation, entry, share in zip(SPEC.operations, stage, shares, strict=True):
            where = (target, number, operation.name)
            rows = [row for row in column if row[0] == operation.name]
            assert close(len(rows), COUNT, share), where
            assert close(sum(applied for _, applied, _ in rows), len(rows), entry.application), where
            values = [value for _, _, value in rows]
            if operation.range is None or entry.magnitude is None:
                assert values == [None] * len(rows), where
                continue
            neutral = operation.range[0]
            strengths = np.array(values, dtype=float) - neutral
            expected = entry.magnitude - neutral
            np.testing.assert_allclose(np.abs(strengths), abs(expected), rtol=1e-5, err_msg=str(where))
            if operation.signed:
                assert close((strengths * expected > 0).sum(), len(rows), 0.5), where
                total_signs.append(strengths)
            else:
                assert (strengths * expected >= 0).all(), where
    assert total_signs
    check_independence(draws)


def check_independence(draws: list[Found]) -> None:
    """Stages know nothing of each other, nor the sign of whether the operation is applied."""
    signed = {operation.name: operation.range for operation in SPEC.operations if operation.signed}
    probability = [
        [sum(e.selection * e.application for e in stage) for stage in SPEC.stages],
        [
            sum(e.selection for op, e in zip(SPEC.operations, stage, strict=True) if op.geometric)
            for stage in SPEC.stages
        ],
    ]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        both_applied = sum(draw[a][1] and draw[b][1] for draw in draws)
        assert close(both_applied, COUNT, probability[0][a] * probability[0][b])
        geometric = {op.name for op in SPEC.operations if op.geometric}
        both_geometric = sum(draw[a][0] in geometric and draw[b][0] in geometric for draw in draws)
        assert close(both_geometric, COUNT, probability[1][a] * probability[1][b])

        def positive(draw: Found, stage: int) -> bool | None:
            name, _, value = draw[stage]
            span = signed.get(name)
            return None if span is None or value is None else value > span[0]

        pairs = [(positive(draw, a), positive(draw, b)) for draw in draws]
        equal = [x == y for x, y in pairs if x is not None and y is not None]
        assert close(sum(equal), len(equal), 0.5)
        among_applied = [positive(draw, a) for draw in draws if draw[a][1] and positive(draw, a) is not None]
        assert close(sum(map(bool, among_applied)), len(among_applied), 0.5)


@pytest.mark.parametrize("target", [*TARGETS, "json"])
def test_strengths_lie_evenly_below_the_strongest(target: str, tmp_path: Path) -> None:
    draws = draws_of(JITTERED, target, tmp_path)
    parts, positive, signed = [], [], []
    for number, stage in enumerate(JITTERED.stages):
        for operation, entry in zip(JITTERED.operations, stage, strict=True):
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


def test_one_image_and_a_batch_have_the_same_draws() -> None:
    engine = ImageAugmenter(JITTERED)
    assert engine.uniforms == 12
    assert ImageAugmenter(SPEC).uniforms == 9
    for first in np.linspace(0.05, 0.95, 10):
        varied = engine.steps([first, 0.0, 0.7, 0.25] * 3)
        for one, other in zip(varied, ImageAugmenter(SPEC).steps([first, 0.0, 0.7] * 3), strict=True):
            assert (*one[:2], one.sign) == (*other[:2], other.sign)
            assert one.magnitude == pytest.approx(other.magnitude * (1 - 0.6 * 0.25))
    image = torch.randint(0, 256, (3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    batch = FrozenPolicy(JITTERED).augment(image[None], engine.draw([varied]))
    assert torch.equal(engine.augment(image, varied), batch[0])


@pytest.mark.parametrize("kind", ["class", "image"])
def test_the_file_without_madao_varies_for_classes_and_images_too(kind: str, tmp_path: Path) -> None:
    policy = ClassPolicy(2, 1, magnitude_jitter=1.0) if kind == "class" else ImagePolicy(1, magnitude_jitter=1.0)
    spec = policy.spec()
    module = load(spec, "python", tmp_path)
    argument = 1 if kind == "class" else Image.new("RGB", (9, 7), "red")
    found = [step for _ in range(1500) for step in module.transform.draw(argument)]
    turned = [abs(value) for function, _, value in found if function.__name__ == "rotate"]
    assert len(turned) > 70
    entry = spec.stages[0][[operation.name for operation in spec.operations].index("Rotate")]
    assert stats.kstest(turned, "uniform", (0, entry.magnitude)).pvalue > 1e-3
    assert_tidy(spec, tmp_path)
