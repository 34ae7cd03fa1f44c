"""Exports of policies that depend on the image."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from madao import ImagePolicy, PolicySpec, load_policy
from madao.cli import main
from madao.export import albumentations as for_albumentations
from madao.export import export, image_conditional
from madao.export import timm as for_timm
from madao.export.single_image import ImageAugmenter, Step, from_pil, to_pil
from madao.export.torchvision import PolicyTransform
from madao.policy import FrozenPolicy
from madao.policy.conditional.features import features
from tests.helpers.exported import assert_tidy, load, single, write
from tests.helpers.policies import inverting_dark, scattered

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = (
    (
        torch.rand(40, 3, 12, 10, generator=GENERATOR)
        * torch.linspace(0.1, 1, 40).reshape(-1, 1, 1, 1)
        * torch.linspace(0.2, 1, 10)
    )
    .mul(255)
    .to(torch.uint8)
)
DARK, LIGHT = torch.full((3, 8, 8), 20, dtype=torch.uint8), torch.full((3, 8, 8), 230, dtype=torch.uint8)


def uneven() -> PolicySpec:
    policy = ImagePolicy(2, 6, operations=["Invert", "Rotate", "Brightness", "Posterize", "Solarize"])
    policy.standardise(IMAGES)
    return scattered(policy, 2.0).spec()


SPEC = uneven()


def loaded(folder: Path) -> FrozenPolicy:
    policy = load_policy(write(SPEC, "json", folder))
    assert isinstance(policy, FrozenPolicy)
    return policy


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
    selection, application, magnitude = loaded(tmp_path).tables_of(IMAGES)
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


def draws(target: str, folder: Path, image: Tensor, count: int) -> list[list[tuple[str, bool]]]:
    module = load(SPEC, target, folder)
    shown = to_pil(image)
    names = [operation.name.lower() for operation in SPEC.operations]
    if target == "python":
        transform = module.PolicyTransform(random.Random(0))
        drawn = [transform.draw(shown) for _ in range(count)]
        return [[(function.__name__, applied) for function, applied, _ in steps] for steps in drawn]
    torch.manual_seed(0)
    each: Any
    if target == "albumentations":
        module.transform.set_random_seed(0)
        array = np.asarray(shown)
        each = [module.transform.get_params_dependent_on_data({}, {"image": array})["steps"] for _ in range(count)]
        return [[(names[step[0]], step[1]) for step in steps] for steps in each]
    if target == "timm":
        each = [module.transform.sample(shown) for _ in range(count)]
    else:
        each = module.transform.make_params([image.expand(count, -1, -1, -1)])["steps"]
    return [[(names[step.operation], step.applied) for step in steps] for steps in each]


@pytest.mark.parametrize("target", ["torchvision", "albumentations", "timm", "python"])
def test_exported_files_draw_with_the_probabilities_of_the_image(target: str, tmp_path: Path) -> None:
    count, pair = 1200, IMAGES[[2, 37]]
    selection, application, _ = (table.double() for table in loaded(tmp_path).tables_of(pair))
    selection /= selection.sum(-1, keepdim=True)
    for number in range(2):
        found = draws(target, tmp_path, pair[number], count)
        for stage in range(2):
            names = [steps[stage][0] for steps in found]
            seen = np.array([names.count(operation.name.lower()) for operation in SPEC.operations])
            expected, other = (count * selection[stage, which].numpy() for which in (number, 1 - number))
            often = expected > 5
            rest = [[*values[often], values[~often].sum()] for values in (seen, expected, other)]
            kept = slice(None) if (~often).any() else slice(-1)
            assert stats.chisquare(rest[0][kept], rest[1][kept]).pvalue > 1e-4
            assert np.abs(seen - other).sum() > 3 * np.abs(seen - expected).sum()
            applied = sum(steps[stage][1] for steps in found)
            chance = float((selection * application).sum(-1)[stage, number])
            assert stats.binomtest(applied, count, chance).pvalue > 1e-5


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
    with pytest.raises(ValueError, match=r"must have mode L or RGB, got RGBA; convert it first"):
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


def test_kornia_refuses_policies_that_depend_on_the_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "policy.json"
    SPEC.save(source)
    with pytest.raises(ValueError, match="kornia draws before it sees the images; export to torchvision"):
        export(SPEC, "kornia")
    assert main(["export", str(source), "--to", "kornia", "--out", str(tmp_path / "a.py")]) == 2
    assert "--label shared" in capsys.readouterr().err
    assert main(["export", str(source), "--to", "kornia", "--label", "shared", "--out", str(tmp_path / "a.py")]) == 0
    assert main(["export", str(source), "--to", "json", "--label", "cat", "--out", str(tmp_path / "b.json")]) == 2
    assert "unknown class 'cat'; this policy has none" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"depends on the image: call sample\(image=image\)"):
        ImageAugmenter(SPEC).sample()


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
