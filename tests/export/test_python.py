"""The exported Python file, as text and as code."""

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from madao.export import export
from madao.export.single_image import Step, from_pil, to_pil
from madao.ops import OPERATIONS
from madao.policy import OperationParams, PolicySpec
from tests.helpers.exported import GEOMETRIC, assert_tidy, load, reference, single, uneven, with_swirl


def test_the_file_holds_only_operations_that_are_drawn() -> None:
    text = export(single("Invert", 0.0), "python")
    assert "def invert" in text
    assert "def rotate" not in text
    assert "def affine" not in text
    assert "import math" not in text
    assert "ImageEnhance" not in text
    operations = OPERATIONS["Rotate"], OPERATIONS["Color"]
    never = PolicySpec(operations, ((OperationParams(0.0, 1.0, 30.0), OperationParams(1.0, 0.5, 1.5)),))
    assert "rotate" not in export(never, "python")


@pytest.mark.parametrize(
    "spec", [uneven(), single("Invert", 0.0), single("Rotate", 1.0, (0.1, 0.2, 0.3))], ids=["uneven", "tone", "colour"]
)
def test_the_file_is_tidy(spec: PolicySpec, tmp_path: Path) -> None:
    assert_tidy(spec, tmp_path)


def test_an_operation_of_ones_own_cannot_go_along() -> None:
    with pytest.raises(ValueError, match="Swirl"):
        export(with_swirl(), "python")


def test_draws_can_be_repeated_and_images_are_checked(tmp_path: Path) -> None:
    module = load(uneven(), "python", tmp_path)
    image = Image.effect_noise((20, 14), 80).convert("RGB")
    runs = []
    for seed in (0, 0, 1):
        transform = module.PolicyTransform(random.Random(seed))
        runs.append([transform(image).tobytes() for _ in range(30)])
    assert runs[0] == runs[1] != runs[2]
    random.seed(5)
    first = module.transform(image).tobytes()
    random.seed(5)
    assert module.transform(image).tobytes() == first
    assert pickle.loads(pickle.dumps(module.PolicyTransform()))(image).size == image.size
    with pytest.raises(ValueError, match="RGBA"):
        module.transform(image.convert("RGBA"))
    coloured = load(single("Rotate", 1.0, (0.1, 0.2, 0.3)), "python", tmp_path)
    with pytest.raises(ValueError, match="colour"):
        coloured.transform(image.convert("L"))


@pytest.mark.parametrize("name", GEOMETRIC)
def test_noise_at_the_edge(name: str, tmp_path: Path) -> None:
    """Where the image fades into the fill, with the hardest contrasts there are."""
    generator = torch.Generator().manual_seed(0)
    for fill in (0.0, 1.0, 0.5, 0.3):
        spec = single(name, 0.77, fill)
        module = load(spec, "python", tmp_path)
        function, _, _, *values, _ = module.STAGES[0][0]
        for channels in (1, 3):
            image = torch.randint(0, 2, (channels, 13, 22), generator=generator, dtype=torch.uint8) * 255
            for sign, value in zip((1.0, -1.0), values, strict=True):
                found = from_pil(module.transform.apply(to_pil(image), [(function, True, value)]))
                expected = reference(spec, image, [Step(0, True, spec.tensors()[2].item(), sign)])
                assert np.abs(found.numpy().astype(int) - expected.numpy().astype(int)).max() <= 1
