"""Exports of policies that depend on the image."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from madao import ImagePolicy, PolicySpec
from madao.export import albumentations as for_albumentations
from madao.export import image_conditional
from madao.export import timm as for_timm
from madao.export.single_image import ImageAugmenter, Step, from_pil, to_pil
from madao.export.torchvision import PolicyTransform
from madao.policy import FrozenPolicy
from madao.policy.conditional.features import features
from tests.helpers.exported import assert_tidy, load, single
from tests.helpers.policies import inverting_dark, scattered, seeded

SHADES = torch.linspace(0.1, 1, 40).reshape(-1, 1, 1, 1) * torch.linspace(0.2, 1, 10)
IMAGES = (255 * torch.rand(40, 3, 12, 10, generator=seeded(0)) * SHADES).to(torch.uint8)
DARK, LIGHT = torch.full((3, 8, 8), 20, dtype=torch.uint8), torch.full((3, 8, 8), 230, dtype=torch.uint8)


def uneven() -> PolicySpec:
    policy = ImagePolicy(2, 6, operations=["Invert", "Rotate", "Brightness", "Posterize", "Solarize"])
    policy.standardise(IMAGES)
    return scattered(policy, 2.0).spec()


SPEC = uneven()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [(16, 16), (32, 48), (240, 160), (7, 13), (21, 27), (150, 200), (1, 40)])
def test_features_from_pillow_equal_those_from_torch(mode: str, size: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    noise[: size[0] // 2] //= 3
    image = Image.fromarray(noise).convert(mode)
    found, expected = image_conditional.features(image), features(from_pil(image)[None])[0].tolist()
    assert found[:6] == pytest.approx(expected[:6], abs=1e-5)
    # Pillow's luma and thumbnail are rounded to levels.
    assert found[6:] == pytest.approx(expected[6:], abs=1.01 / 255)


def test_the_python_file_has_the_probabilities_of_the_image(tmp_path: Path) -> None:
    module = load(SPEC, "python", tmp_path)
    selection, application, magnitude = FrozenPolicy(SPEC).tables_of(IMAGES)
    names = {operation.name.lower(): index for index, operation in enumerate(SPEC.operations)}
    for number in range(0, 40, 7):
        found = module.law(to_pil(IMAGES[number]), module.FEATURES, module.UNITS, module.STAGES)
        for stage, rows in enumerate(found):
            assert len(rows) == len(SPEC.operations)
            total = sum(row[1] for row in rows)
            for function, share, chance, one_way, other_way, neutral in rows:
                index = names[function.__name__]
                operation, mu = SPEC.operations[index], magnitude[stage, number, index]
                assert share / total == pytest.approx(float(selection[stage, number, index]), abs=0.01)
                assert chance == pytest.approx(float(application[stage, number, index]), abs=0.01)
                if operation.range is not None:
                    assert neutral == operation.range[0]
                    span = abs(operation.range[1] - operation.range[0])
                    for way, sign in ((one_way, 1.0), (other_way, -1.0)):
                        expected = operation.value(mu, torch.tensor(sign))
                        assert way == pytest.approx(float(expected), abs=0.01 * span)
    assert selection.std(1).max() > 0.1
    assert_tidy(SPEC, tmp_path)
    text = Path(module.__file__ or "").read_text()
    assert not re.search(r"^(import|from) (?!math|random|PIL)", text, re.MULTILINE)


def test_libraries_draw_by_the_image_they_augment(tmp_path: Path) -> None:
    spec = inverting_dark().spec()
    torchvision = PolicyTransform(spec)
    bright = torch.full_like(DARK, 235)
    assert torch.equal(torchvision(DARK), bright)
    assert torch.equal(torchvision(LIGHT), LIGHT)
    batch = torchvision(torch.stack([DARK, LIGHT, DARK]))
    assert torch.equal(batch, torch.stack([bright, LIGHT, bright]))
    video = tv_tensors.Video(torch.stack([torch.stack([LIGHT, DARK]), torch.stack([DARK, DARK])]))
    found = torchvision(video).as_subclass(Tensor)  # by its first frame
    assert torch.equal(found[0], video[0].as_subclass(Tensor))
    assert torch.equal(found[1], torch.stack([bright, bright]))
    composed = v2.Compose([torchvision, v2.Identity()])
    image, mask = composed(tv_tensors.Image(DARK), tv_tensors.Mask(torch.ones(8, 8)))
    assert torch.equal(image.as_subclass(Tensor), bright)
    assert (mask == 1).all()
    assert composed(to_pil(DARK)).getpixel((0, 0)) == (235,) * 3

    assert torchvision(torch.zeros(0, 3, 8, 8)).shape == (0, 3, 8, 8)

    timm = for_timm.PolicyTransform(spec)
    with pytest.raises(ValueError, match="RGBA"):
        timm(Image.new("RGBA", (8, 8)))
    albumentations = for_albumentations.PolicyTransform(spec)
    python = load(spec, "python", tmp_path).transform
    for shown, level in ((DARK, 235), (LIGHT, 230)):
        assert timm(to_pil(shown)).getpixel((3, 3)) == (level,) * 3
        assert python(to_pil(shown)).getpixel((3, 3)) == (level,) * 3
        array = shown.permute(1, 2, 0).contiguous().numpy()
        assert (albumentations(image=array)["image"] == level).all()
        assert (albumentations(image=array[..., 0])["image"] == level).all()
        assert (albumentations(images=np.stack([array, array]))["images"] == level).all()
        assert (albumentations(volume=np.stack([array, array]))["volume"] == level).all()
        assert (albumentations(volumes=np.stack([array, array])[None])["volumes"] == level).all()
        floats = albumentations(image=(array / 255).astype(np.float32))["image"]
        assert floats == pytest.approx(level / 255, abs=1e-5)


def test_the_file_draws_where_logits_are_large(tmp_path: Path) -> None:
    policy = ImagePolicy(1, 1, operations=["Invert", "Equalize"])
    with torch.no_grad():
        policy.get_parameter("selection_outputs").copy_(torch.tensor([5000.0, -5000.0]).expand(1, 1, 2))
    python = load(policy.spec(), "python", tmp_path).transform
    for shown in (DARK, LIGHT):
        names = {python.draw(to_pil(shown))[0][0].__name__ for _ in range(20)}
        assert names <= {"invert", "equalize"}


def test_the_cache_of_magnitudes_does_not_grow_without_end() -> None:
    augmenter, image = ImageAugmenter(single("Brightness", 1.0)), torch.zeros(3, 1, 1, dtype=torch.uint8)
    for number in range(5000):
        augmenter.augment(image, (Step(0, True, number / 5000, 1.0),))
    assert 0 < len(augmenter._values) <= 4096
