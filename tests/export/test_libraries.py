"""The albumentations, kornia and timm transforms as their users meet them."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import albumentations
import numpy as np
import pytest
import torch
from kornia.augmentation import AugmentationSequential, RandomHorizontalFlip
from PIL import Image
from timm.data.transforms_factory import create_transform

from madao.export.albumentations import PolicyTransform as ForAlbumentations
from madao.export.kornia import PolicyTransform as ForKornia
from madao.export.timm import PolicyTransform as ForTimm
from madao.export.timm import insert
from madao.export.torchvision import PolicyTransform as ForTorchvision
from tests.helpers.exported import single, uneven, with_swirl

TRANSFORMS: dict[str, Callable[..., Any]] = {
    "torchvision": ForTorchvision,
    "albumentations": ForAlbumentations,
    "kornia": ForKornia,
    "timm": ForTimm,
}


def array(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def images_of(target: str, seed: int) -> list[bytes]:
    """Return twenty augmented images of a transform that was pickled, for a seed."""
    pixels = array(16, 20, 3)
    transform: Any = pickle.loads(pickle.dumps(TRANSFORMS[target](uneven())))
    torch.manual_seed(seed)
    if target == "albumentations":
        pipeline = albumentations.Compose([albumentations.HorizontalFlip(), transform], seed=seed)
        return [pipeline(image=pixels)["image"].tobytes() for _ in range(20)]
    if target == "timm":
        return [transform(Image.fromarray(pixels)).tobytes() for _ in range(20)]
    image = torch.from_numpy(pixels.transpose(2, 0, 1))
    image = image[None] / 255 if target == "kornia" else image
    return [transform(image).numpy().tobytes() for _ in range(20)]


@pytest.mark.parametrize("target", TRANSFORMS)
def test_the_seed_decides(target: str) -> None:
    runs = [images_of(target, seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) > 5


def test_albumentations_writes_itself_and_reads_itself() -> None:
    image = array(16, 20, 3)
    pipeline = albumentations.Compose([ForAlbumentations(uneven())], seed=4)
    written = json.loads(json.dumps(albumentations.to_dict(pipeline)))
    again = albumentations.from_dict(written)
    again.set_random_seed(4)
    pipeline.set_random_seed(4)
    for _ in range(20):
        assert np.array_equal(pipeline(image=image)["image"], again(image=image)["image"])
    assert repr(ForAlbumentations(uneven())) == "PolicyTransform(stages=3, operations=14, p=1.0)"
    assert ForAlbumentations(uneven(), p=0.0)(image=image)["image"] is image


def test_albumentations_replay() -> None:
    image, mask = array(16, 20, 3), array(16, 20)
    pipeline = albumentations.ReplayCompose([ForAlbumentations(uneven())])
    for _ in range(20):
        first = pipeline(image=image, mask=mask)
        replay = albumentations.ReplayCompose.replay(first["replay"], image=image, mask=mask)
        assert np.array_equal(first["image"], replay["image"])
        assert np.array_equal(first["mask"], replay["mask"])


def test_albumentations_takes_grey_images_and_several_at_once() -> None:
    transform = ForAlbumentations(uneven())
    for shape in ((16, 20), (16, 20, 1)):
        for _ in range(20):
            assert transform(image=array(*shape))["image"].shape == shape
    images = np.stack([array(16, 20, 3)] * 4)
    masks = np.stack([array(16, 20)] * 2)
    for _ in range(10):
        found = transform(images=images, masks=masks)
        assert found["images"].shape == images.shape
        assert all(np.array_equal(found["images"][0], other) for other in found["images"])
        assert found["masks"].dtype == masks.dtype
    with pytest.raises(ValueError, match="5"):
        ForAlbumentations(single("Invert", 0.0))(image=array(4, 4, 5))
    with pytest.raises(ValueError, match="Swirl"):
        ForAlbumentations(with_swirl(1e-9))(image=array(4, 4, 3), mask=array(4, 4))


def test_albumentations_boxes_pushed_out_of_the_frame_are_dropped() -> None:
    pipeline = albumentations.Compose(
        [ForAlbumentations(single("TranslateX", 1.0))],
        bbox_params=albumentations.BboxParams(format="coco", label_fields=["names"]),
        seed=0,
    )
    left = {}
    for _ in range(8):
        found = pipeline(image=array(20, 100, 3), bboxes=[[2, 2, 30, 10], [50, 2, 20, 10]], names=["a", "b"])
        left[tuple(found["names"])] = found["bboxes"]
    assert set(left) == {("b",), ("a", "b")}  # to the left, where the first leaves; and to the right
    np.testing.assert_allclose(left["b",], [[5, 2, 20, 10]], atol=1e-3)


def test_kornia_replays() -> None:
    images = torch.rand(8, 3, 16, 20)
    transform = ForKornia(uneven())
    first = transform(images)
    params = {name: value.clone() for name, value in transform._params.items()}
    second = transform(images)
    assert not torch.equal(first, second)
    assert torch.equal(transform(images, params=params), first)
    assert {tuple(row) for row in params["choice"].tolist()} != {tuple(params["choice"][0].tolist())}


def test_kornia_options() -> None:
    images = torch.rand(1, 3, 16, 20).repeat(6, 1, 1, 1)
    same = ForKornia(uneven(), same_on_batch=True)
    for _ in range(5):
        found = same(images)
        assert all(torch.equal(found[0], other) for other in found)
    assert ForKornia(uneven(), keepdim=True)(images[0]).shape == (3, 16, 20)
    assert ForKornia(uneven())(images[:0]).shape == (0, 3, 16, 20)
    half = ForKornia(single("Invert", 0.0), p=0.5)
    torch.manual_seed(0)
    inverted = (half(images.repeat(20, 1, 1, 1)) != images.repeat(20, 1, 1, 1)).flatten(1).any(1)
    assert 30 < inverted.sum() < 90
    assert repr(same) == "PolicyTransform(stages=3, operations=14, p=1.0)"
    with pytest.raises(ValueError, match="values"):
        same(images * 255)
    rotate = ForKornia(single("Rotate", 0.5))
    assert torch.autograd.grad(rotate(images.requires_grad_()).sum(), images)[0].any()
    pipeline = AugmentationSequential(rotate, data_keys=["input"])
    with pytest.raises(NotImplementedError):
        pipeline.inverse(pipeline(images))


def test_kornia_after_another_augmentation() -> None:
    torch.manual_seed(0)
    pipeline = AugmentationSequential(RandomHorizontalFlip(), ForKornia(uneven()), data_keys=["input", "mask"])
    images = torch.rand(4, 1, 16, 20)
    masks = torch.randint(0, 9, (4, 1, 16, 20)).float()
    found, moved = pipeline(images, masks)
    assert found.shape == images.shape
    assert set(moved.unique().tolist()) <= set(range(9))
    box, point = torch.tensor([[[1.0, 2.0, 5.0, 7.0]]]).repeat(4, 1, 1), torch.tensor([[[1.0, 2.0]]]).repeat(4, 1, 1)
    assert torch.equal(ForKornia(with_swirl())(images), images.flip(-1))
    for key, beside in (("mask", masks), ("bbox_xyxy", box), ("keypoints", point)):
        refusing = AugmentationSequential(ForKornia(with_swirl(1e-9)), data_keys=["input", key])
        with pytest.raises(ValueError, match="Swirl"):
            refusing(images, beside)


@pytest.mark.parametrize("prefetcher", [False, True])
@pytest.mark.parametrize("mode", ["rrc", "rkrc"])
def test_timm_puts_it_behind_crop_and_flip(prefetcher: bool, mode: str) -> None:
    transform = ForTimm(uneven())
    settings: dict[str, Any] = {"vflip": 0.1, "use_prefetcher": prefetcher, "re_prob": 0.5, "train_crop_mode": mode}
    pipeline = create_transform(32, is_training=True, auto_augment=None, **settings)
    assert insert(transform, pipeline) is pipeline
    names = [type(step).__name__ for step in pipeline.transforms]
    position = names.index("PolicyTransform")
    assert names[position - 2 : position] == ["RandomHorizontalFlip", "RandomVerticalFlip"]
    assert names[position + 1 :][:2] == ["ColorJitter", "MaybePILToTensor" if prefetcher else "MaybeToTensor"]
    result = pipeline(Image.fromarray(array(50, 40, 3)))
    assert result.shape == (3, 32, 32)
    assert result.dtype == (torch.uint8 if prefetcher else torch.float32)


def test_timm_in_three_parts_and_mistakes() -> None:
    transform = ForTimm(uneven())
    parts = create_transform(32, is_training=True, auto_augment=None, separate=True)
    insert(transform, parts)
    assert parts[1].transforms[0] is transform
    taken = create_transform(32, is_training=True, auto_augment="rand-m9-n2")
    with pytest.raises(ValueError, match="RandAugment"):
        insert(transform, taken)
    with pytest.raises(TypeError, match="int"):
        insert(transform, 3)
    assert repr(transform).startswith("PolicyTransform(n=3, ops=\n\tstage 1")
