"""A blob in the image, its mask, its box and its key point land in the same place, in every library that has them."""

from collections.abc import Sequence
from typing import Any

import albumentations
import numpy as np
import pytest
import torch
from kornia.augmentation import AugmentationSequential
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from madao.export.albumentations import PolicyTransform as ForAlbumentations
from madao.export.kornia import PolicyTransform as ForKornia
from madao.export.torchvision import PolicyTransform as ForTorchvision
from madao.ops import OPERATIONS
from madao.policy import OperationParams, PolicySpec
from tests.helpers.exported import GEOMETRIC, single, uneven
from tests.helpers.moved_masks import brute_force

HEIGHT, WIDTH = 48, 80
BOX = (34, 17, 45, 26)  # left, top, right, bottom: the pixels 34..44 by 17..25
CENTRE = ((BOX[0] + BOX[2]) / 2, (BOX[1] + BOX[3]) / 2)  # in pixels from edge to edge


def turned_and_sheared() -> PolicySpec:
    """Two stages, so that their order shows."""
    operations = OPERATIONS["Rotate"], OPERATIONS["ShearX"], OPERATIONS["Invert"]
    first = OperationParams(1.0, 1.0, 25.0), OperationParams(0.0, 1.0, 0.3), OperationParams(0.0, 1.0)
    second = OperationParams(0.0, 1.0, 25.0), OperationParams(1.0, 1.0, 0.3), OperationParams(0.0, 1.0)
    third = OperationParams(0.0, 1.0, 25.0), OperationParams(0.0, 1.0, 0.3), OperationParams(1.0, 0.0)
    return PolicySpec(operations, (first, second, third))


SPECS = {**{name: single(name, 0.5) for name in GEOMETRIC}, "two stages": turned_and_sheared()}


def blob() -> Tensor:
    mask = torch.zeros(HEIGHT, WIDTH, dtype=torch.int64)
    mask[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 1
    return mask


def labels() -> Tensor:
    """A mask whose every pixel is another number."""
    return torch.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) + 1


def expected_labels(spec: PolicySpec, steps: Sequence[Sequence[Any]]) -> tuple[Tensor, Tensor]:
    mask, certain = labels(), torch.ones(HEIGHT, WIDTH, dtype=torch.bool)
    for choice, applied, magnitude, sign in steps:
        operation = spec.operations[choice]
        if applied and operation.geometric:
            value = operation.value(torch.tensor(magnitude), torch.tensor(sign)).item()
            mask, sure = brute_force(operation.name, mask, value)
            certain = certain & sure
    return mask, certain


def check(
    spec: PolicySpec, steps: Sequence[Sequence[Any]], image: Tensor, mask: Tensor, box: Sequence[float], point: Any
) -> None:
    """`image` [H, W] in 0..1, `mask` of `labels`, `box` and `point` in pixels from edge to edge."""
    expected, certain = expected_labels(spec, steps)
    assert torch.equal(mask[certain].long(), expected[certain])
    assert certain.float().mean() > 0.9
    shown = torch.isin(mask.long(), labels()[blob() == 1])
    several = len(spec.stages) > 1
    assert ((image > 0.5) ^ shown).sum() <= (8 if several else 3)  # blurred corners
    rows, columns = shown.nonzero().T
    extent = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    for found, seen, outwards in zip(box, extent, (-1, -1, 1, 1), strict=True):
        over = (found - seen.item()) * outwards
        # The box around a moved box is wider than the box around what was in it.
        assert -1 < over < (4 if several else 1), (list(box), extent)
    y, x = torch.meshgrid(torch.arange(HEIGHT) + 0.5, torch.arange(WIDTH) + 0.5, indexing="ij")
    weight = image.double() / image.double().sum()
    assert abs((weight * x).sum() - point[0]) < 0.05
    assert abs((weight * y).sum() - point[1]) < 0.05


def signs(steps: Sequence[Sequence[Any]]) -> tuple[float, ...]:
    return tuple(float(step[3]) for step in steps[:2])


@pytest.mark.parametrize("name", SPECS)
def test_torchvision(name: str) -> None:
    spec = SPECS[name]
    transform = ForTorchvision(spec)
    seen = set()
    for seed in range(14):
        sample = {
            "image": tv_tensors.Image(blob()[None].float()),
            "mask": tv_tensors.Mask(labels()),
            "boxes": tv_tensors.BoundingBoxes(torch.tensor([BOX]).double(), format="XYXY", canvas_size=(HEIGHT, WIDTH)),
            "points": tv_tensors.KeyPoints(torch.tensor([CENTRE]).double(), canvas_size=(HEIGHT, WIDTH)),
        }
        torch.manual_seed(seed)
        steps = transform.sample()
        torch.manual_seed(seed)
        found = transform(sample)
        assert {key: type(value) for key, value in found.items()} == {key: type(v) for key, v in sample.items()}
        check(spec, steps, found["image"][0], found["mask"], found["boxes"][0].tolist(), found["points"][0].tolist())
        seen.add(signs(steps))
    assert len(seen) >= 2


@pytest.mark.parametrize("name", SPECS)
def test_albumentations(name: str) -> None:
    spec = SPECS[name]
    transform = ForAlbumentations(spec)
    pipeline = albumentations.Compose(
        [transform],
        bbox_params=albumentations.BboxParams(format="pascal_voc", label_fields=["names"]),
        keypoint_params=albumentations.KeypointParams(format="xy"),
        additional_targets={"second": "image", "other": "mask"},
        seed=3,
    )
    image = np.repeat(blob().numpy()[:, :, None].astype(np.float32), 3, 2)
    seen = set()
    for _ in range(10):
        found = pipeline(
            image=image,
            second=(image * 255).astype(np.uint8),
            mask=labels().numpy(),
            other=labels().numpy().astype(np.int32)[:, :, None],
            bboxes=np.array([BOX], dtype=np.float32),
            names=["blob"],
            keypoints=np.array([[CENTRE[0] - 0.5, CENTRE[1] - 0.5]]),  # the centre of pixel i is i
        )
        steps = transform.get_applied_params()["steps"]
        point = found["keypoints"][0] + 0.5
        mask = torch.from_numpy(found["mask"])
        check(spec, steps, torch.from_numpy(found["image"])[..., 0], mask, found["bboxes"][0].tolist(), point)
        assert np.array_equal(found["other"][..., 0], found["mask"])
        assert np.abs(found["second"] / 255 - found["image"]).max() < 0.01
        assert found["names"] == ["blob"]
        seen.add(signs(steps))
    assert len(seen) >= 2


@pytest.mark.parametrize("name", SPECS)
def test_kornia(name: str) -> None:
    spec = SPECS[name]
    torch.manual_seed(1)
    transform = ForKornia(spec)
    pipeline = AugmentationSequential(transform, data_keys=["input", "mask", "bbox_xyxy", "keypoints"])
    count = 12
    images = blob().float().repeat(count, 1, 1, 1)
    masks = labels().float().repeat(count, 1, 1, 1)
    boxes = torch.tensor([[BOX]]).double().repeat(count, 1, 1)
    points = (torch.tensor([[CENTRE]]).double() - 0.5).repeat(count, 1, 1)  # the centre of pixel i is i
    found = pipeline(images, masks, boxes, points)
    params = transform._params
    fields = [params[field].tolist() for field in ("choice", "applied", "magnitude", "sign")]
    seen = set()
    for number, rows in enumerate(zip(*fields, strict=True)):
        steps = list(zip(*rows, strict=True))
        point = found[3][number, 0] + 0.5
        check(spec, steps, found[0][number, 0], found[1][number, 0], found[2][number, 0].tolist(), point.tolist())
        seen.add(signs(steps))
    assert len(seen) >= 2
    again = pipeline(images, masks, boxes, points, params=pipeline._params)
    assert all(map(torch.equal, found, again))


def test_masks_lose_the_parts_that_left_the_frame() -> None:
    """Out on one side and back: the image has lost what was pushed out, so the mask must have."""
    operations = (OPERATIONS["TranslateX"],)
    spec = PolicySpec(operations, ((OperationParams(1.0, 1.0, 0.4),), (OperationParams(1.0, 1.0, 0.4),)))
    policy = ForTorchvision(spec).policy
    out, back = policy.steps([0.0, 0.0, 0.1, 0.0, 0.0, 0.9])
    assert (out.sign, back.sign) == (1.0, -1.0)
    ones = torch.ones(1, 20, 50)
    image, mask = policy.augment(ones, (out, back)), policy.masks(ones, (out, back))
    torch.testing.assert_close(image, mask, atol=1e-4, rtol=0)
    assert mask.sum() == 20 * 30


def test_tone_leaves_everything_but_the_image_as_it_is() -> None:
    spec = single("Invert", 0.0)
    sample = {"image": tv_tensors.Image(blob()[None].float()), "mask": tv_tensors.Mask(labels())}
    found = ForTorchvision(spec)(sample)
    assert torch.equal(found["image"], 1 - sample["image"])
    assert torch.equal(found["mask"], labels())


@pytest.mark.parametrize("angle", [0.0, 40.0, 200.0])
def test_the_angle_of_a_key_point_turns_with_the_image(angle: float) -> None:
    transform = ForAlbumentations(single("Rotate", 0.5))
    pipeline = albumentations.Compose(
        [transform], keypoint_params=albumentations.KeypointParams(format="xyas", remove_invisible=False), seed=0
    )
    params = albumentations.KeypointParams(format="xyas", remove_invisible=False)
    theirs, other = (
        albumentations.Compose([albumentations.Affine(rotate=(angle, angle), p=1)], keypoint_params=params)
        for angle in (-15, 15)
    )
    image, point = np.zeros((40, 60, 3), np.uint8), np.array([[11.0, 30.0, angle, 2.0]])
    for _ in range(4):
        found = pipeline(image=image, keypoints=point)["keypoints"]
        # A positive angle turns counter-clockwise; albumentations' Affine takes it so as well.
        same = other if transform.get_applied_params()["steps"][0][3] > 0 else theirs
        expected = same(image=image, keypoints=point)["keypoints"]
        np.testing.assert_allclose(found, expected, atol=1e-3)


def test_key_points_and_boxes_are_where_torchvisions_own_rotate_puts_them() -> None:
    transform = ForTorchvision(single("Rotate", 0.5))
    steps = (transform.policy.steps([0.0, 0.0, 0.0]),)
    size = (HEIGHT, WIDTH)
    params = {"steps": list(steps), "shape": ()}
    point = tv_tensors.KeyPoints([[[12.0, 30.0]], [[70.0, 3.0]]], canvas_size=size)
    torch.testing.assert_close(
        transform.transform(point, params).as_subclass(Tensor), functional.rotate(point, 15).as_subclass(Tensor)
    )
    for format_, values in (
        ("XYXY", [20.0, 10.0, 40.0, 31.0]),
        ("XYWH", [20.0, 10.0, 20.0, 21.0]),
        ("CXCYWH", [30.0, 20.0, 20.0, 21.0]),
        ("XYWHR", [20.0, 14.0, 20.0, 11.0, 10.0]),
        ("CXCYWHR", [30.0, 20.0, 20.0, 11.0, -20.0]),
        ("XYXYXYXY", [20.0, 10.0, 40.0, 10.0, 40.0, 31.0, 20.0, 31.0]),
    ):
        box = tv_tensors.BoundingBoxes([values], format=format_, canvas_size=size, clamping_mode=None)
        found = transform.transform(box, params)
        assert (found.format, found.canvas_size, found.clamping_mode) == (box.format, size, None)
        theirs = functional.rotate(box, 15).as_subclass(Tensor)
        torch.testing.assert_close(found.as_subclass(Tensor), theirs, atol=1e-3, rtol=0)


def test_boxes_are_cut_as_their_clamping_mode_says() -> None:
    transform = ForTorchvision(single("TranslateX", 1.0))
    steps = transform.policy.steps([0.0, 0.0, 0.0])
    params = {"steps": [steps], "shape": ()}
    values = [[10, 5, 60, 20]]
    for mode, left in (("hard", 0), (None, 10 - 36)):
        box = tv_tensors.BoundingBoxes(values, format="XYXY", canvas_size=(HEIGHT, WIDTH), clamping_mode=mode)
        found = transform.transform(box, params)
        assert found.dtype == torch.int64
        assert found[0].tolist() == [left, 5, 60 - 36, 20]


def test_the_whole_policy_with_everything_beside_the_image_keeps_types() -> None:
    transform = ForTorchvision(uneven())
    for seed in range(40):
        torch.manual_seed(seed)
        sample = (
            tv_tensors.Image(torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8)),
            tv_tensors.Mask(torch.ones(4, 20, 30, dtype=torch.bool)),
            tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(20, 30)),
            7,
            "name",
        )
        found = transform(*sample)
        assert [type(item) for item in found] == [type(item) for item in sample]
        for name in ("dtype", "shape"):
            assert [getattr(item, name, None) for item in found] == [getattr(item, name, None) for item in sample]
