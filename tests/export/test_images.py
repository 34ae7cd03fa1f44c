"""For the same draw, every export gives the images of `FrozenPolicy.augment`, the Python file to one level."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from madao.export.albumentations import PolicyTransform as ForAlbumentations
from madao.export.kornia import PolicyTransform as ForKornia
from madao.export.single_image import ImageAugmenter, Step, from_pil, to_pil
from madao.export.timm import PolicyTransform as ForTimm
from madao.export.torchvision import PolicyTransform as ForTorchvision
from madao.ops import OPERATIONS, PAPER
from madao.ops.geometric import Fill
from madao.policy import FrozenPolicy
from tests.helpers.exported import GEOMETRIC, draw_of, load, reference, single, uneven

MAGNITUDES = [0.0, 0.3, 0.62, 1.0]
FILLS: list[Fill] = [0.0, 0.5, (0.2, 0.45, 1.0), (100 / 255, 1.0, 0.0)]


def kinds(photographs: list[Tensor]) -> list[Tensor]:
    """Not square, of one and three channels, small and larger."""
    return [photographs[0][:, 60:91, 200:247], photographs[1][:1, 20:75, 100:138], photographs[1][:, 100:300, 50:200]]


def steps_for(magnitude: float) -> list[tuple[Step]]:
    return [(Step(0, True, torch.tensor(magnitude).item(), sign),) for sign in (1.0, -1.0)]


def fits(fill: Fill, image: Tensor) -> bool:
    return isinstance(fill, float) or len(fill) == len(image)


@pytest.mark.parametrize("name", PAPER)
def test_class_based_exports_agree_bit_for_bit(name: str, photographs: list[Tensor]) -> None:
    for fill in FILLS if name in GEOMETRIC else FILLS[:1]:
        spec = single(name, 0.5, fill)
        torchvision, timm = ForTorchvision(spec), ForTimm(spec)
        albumentations, kornia = ForAlbumentations(spec), ForKornia(spec)
        for image in kinds(photographs):
            if not fits(fill, image):
                continue
            array = image.permute(1, 2, 0).numpy()
            smooth = image.float() / 255
            for magnitude in MAGNITUDES:
                for steps in steps_for(magnitude):
                    expected = reference(spec, image, steps)
                    params = {"steps": [steps], "shape": ()}
                    plain = {"steps": [list(step) for step in steps]}
                    assert torch.equal(torchvision.transform(image, params), expected)
                    assert torch.equal(from_pil(torchvision.transform(to_pil(image), params)), expected)
                    assert torch.equal(from_pil(timm.policy.apply_pil(to_pil(image), steps)), expected)
                    assert np.array_equal(albumentations.apply(array, **plain), expected.permute(1, 2, 0).numpy())
                    exact = reference(spec, smooth, steps)
                    assert torch.equal(torchvision.transform(smooth, params), exact)
                    found = albumentations.apply(smooth.permute(1, 2, 0).numpy(), **plain)
                    assert np.array_equal(found, exact.permute(1, 2, 0).numpy())
                    draw = draw_of(steps)
                    drawn = {field: getattr(draw, field).T for field in ("choice", "applied", "magnitude", "sign")}
                    assert torch.equal(kornia(smooth[None], params=drawn)[0], exact)
                    if magnitude == 0 and OPERATIONS[name].has_magnitude:
                        assert torch.equal(expected, image)


@pytest.mark.parametrize("name", PAPER)
def test_the_file_without_madao_agrees_to_one_level(name: str, photographs: list[Tensor], tmp_path: Path) -> None:
    means = []
    for fill in FILLS if name in GEOMETRIC else FILLS[:1]:
        for magnitude in MAGNITUDES:
            spec = single(name, magnitude, fill)
            module = load(spec, "python", tmp_path)
            function, _, _, *values, _ = module.STAGES[0][0]
            for image in kinds(photographs):
                if not fits(fill, image):
                    continue
                for sign, value in zip((1.0, -1.0), values, strict=True):
                    found = from_pil(module.transform.apply(to_pil(image), [(function, True, value)]))
                    steps = [Step(0, True, spec.tensors()[2].item(), sign)]
                    difference = (found.int() - reference(spec, image, steps).int()).abs()
                    assert difference.max() <= (1 if name in GEOMETRIC else 0), (fill, magnitude, sign, image.shape)
                    means.append(difference.float().mean().item())
                    if magnitude == 0 and OPERATIONS[name].has_magnitude:
                        assert torch.equal(found, image)
    assert max(means) < 0.35


def test_whole_draws_of_several_stages(photographs: list[Tensor]) -> None:
    """A call applies the transform's draw, stage by stage."""
    spec = uneven()
    image = kinds(photographs)[0]
    torchvision, timm, albumentations = ForTorchvision(spec), ForTimm(spec), ForAlbumentations(spec)
    changed = 0
    for seed in range(60):
        torch.manual_seed(seed)
        steps = torchvision.sample()
        expected = reference(spec, image, steps)
        torch.manual_seed(seed)
        assert torch.equal(torchvision(image), expected)
        torch.manual_seed(seed)
        assert torch.equal(from_pil(timm(to_pil(image))), expected)
        albumentations.set_random_seed(seed)
        plain = albumentations.get_params()["steps"]
        albumentations.set_random_seed(seed)
        found = albumentations(image=image.permute(1, 2, 0).numpy())["image"]
        assert np.array_equal(found, reference(spec, image, plain).permute(1, 2, 0).numpy())
        changed += not torch.equal(expected, image)
    assert changed > 30


def test_caches_do_not_mix_up_images(photographs: list[Tensor]) -> None:
    """Sizes, magnitudes and signs in turn, more of them than are kept; and images too large to be kept for."""
    spec = single("Rotate", 0.5)
    policy = ImageAugmenter(spec)
    for number in range(150):
        image = photographs[0][:, : 20 + number % 9, : 30 + number % 7]
        steps = steps_for((number % 50) / 50)[number % 2]
        assert torch.equal(policy.augment(image, steps), reference(spec, image, steps))
    steps = steps_for(0.7)[0]
    for image in (photographs[0][:, :20, :30], photographs[0][:, :30, :20], photographs[0][:, :20, :30]):
        assert torch.equal(policy.augment(image, steps), reference(spec, image, steps))
    large = photographs[0]
    assert large.shape[1] * large.shape[2] > 256 * 256
    steps = steps_for(0.7)[1]
    assert torch.equal(policy.augment(large, steps), reference(spec, large, steps))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats(dtype: torch.dtype, photographs: list[Tensor]) -> None:
    spec = uneven()
    image = (kinds(photographs)[0].double() / 255).to(dtype)
    frozen = FrozenPolicy(spec)
    for seed in range(12):
        torch.manual_seed(seed)
        steps = ForTorchvision(spec).sample()
        found = ForTorchvision(spec).transform(image, {"steps": [steps], "shape": ()})
        assert found.dtype == dtype
        assert torch.equal(found, frozen.augment(image[None], draw_of(steps))[0])


def test_a_pil_image_that_is_not_changed_is_itself() -> None:
    image = Image.new("RGB", (5, 4))
    assert ForTimm(single("Rotate", 1.0, application=0.0))(image) is image


def test_values_cached_in_inference_mode_allow_gradients() -> None:
    transform = ForTorchvision(single("Rotate", 0.5))
    steps = {"steps": [steps_for(0.5)[0]], "shape": ()}
    with torch.inference_mode():
        transform.transform(torch.rand(3, 8, 9), steps)
    image = torch.rand(3, 8, 9, requires_grad=True)
    transform.transform(image, steps).sum().backward()
    assert image.grad is not None
