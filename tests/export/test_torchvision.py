"""The torchvision transform as its users meet it."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from madao import Policy, Uniform
from madao.export.albumentations import PolicyTransform as ForAlbumentations
from madao.export.kornia import PolicyTransform as ForKornia
from madao.export.timm import PolicyTransform as ForTimm
from madao.export.torchvision import PolicyTransform
from madao.policy import FrozenPolicy, PolicySpec
from tests.helpers.exported import reference, single, uneven, with_swirl


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("channels", [1, 3])
def test_each_image_of_a_batch_has_its_own_draw(channels: int) -> None:
    spec = uneven()
    transform = PolicyTransform(spec)
    images = noise(channels, 16, 20).repeat(2, 20, 1, 1, 1)
    torch.manual_seed(0)
    params = transform.make_params([images])
    torch.manual_seed(0)
    found = transform(images)
    assert found.shape == images.shape
    assert len(set(params["steps"])) > 20
    for image, result, steps in zip(images.flatten(0, 1), found.flatten(0, 1), params["steps"], strict=True):
        assert torch.equal(result, reference(spec, image, steps))
    draw = transform.policy.draw(params["steps"])
    assert torch.equal(FrozenPolicy(spec).augment(images.flatten(0, 1), draw), found.flatten(0, 1))
    assert transform(images[0, :0]).shape == (0, channels, 16, 20)


def test_masks_beside_a_batch() -> None:
    transform = PolicyTransform(single("TranslateX", 0.5))
    images = tv_tensors.Image(torch.ones(6, 1, 20, 40))
    images_out, masks_out = transform(images, tv_tensors.Mask(torch.ones(6, 20, 40, dtype=torch.uint8)))
    assert torch.equal((images_out[:, 0] > 0.5).byte(), masks_out)
    with pytest.raises(ValueError, match=r"\[5, 20, 40\]"):
        transform(images, tv_tensors.Mask(torch.ones(5, 20, 40)))
    with pytest.raises(ValueError, match="boxes"):
        transform(images, tv_tensors.BoundingBoxes([[0, 0, 1, 1]], format="XYXY", canvas_size=(20, 40)))


def test_all_frames_of_a_video_and_all_images_of_a_sample_have_one_draw() -> None:
    spec = uneven()
    transform = PolicyTransform(spec)
    frame = noise(3, 16, 20)
    video = tv_tensors.Video(frame.repeat(5, 1, 1, 1))
    for seed in range(10):
        torch.manual_seed(seed)
        found = transform(video)
        assert isinstance(found, tv_tensors.Video)
        assert all(torch.equal(found[0], other) for other in found)
        torch.manual_seed(seed)
        first, second = transform(tv_tensors.Image(frame), tv_tensors.Image(frame))
        assert torch.equal(first, second)
        assert torch.equal(first, found[0])
    several = transform(tv_tensors.Video(frame.repeat(12, 2, 1, 1, 1)))
    assert len({clip[0].numpy().tobytes() for clip in several}) > 3


RGBA, SMALL = Image.new("RGBA", (4, 4)), tv_tensors.Image(torch.zeros(3, 8, 8))


@pytest.mark.parametrize(
    ("sample", "name"),
    [
        ([RGBA], "RGBA"),
        ([SMALL, tv_tensors.Image(torch.zeros(2, 3, 8, 8))], "dimensions"),
        ([Image.new("L", (4, 4))], "got"),
        *(([unfit], "got") for unfit in (torch.zeros(1, 4, 4), torch.full((3, 2, 4), 7.0), torch.zeros(4, 8, 8))),
    ],
)
def test_images_that_cannot_be_augmented_are_refused(sample: list[Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        PolicyTransform(single("Rotate", 0.5, fill=(0.1, 0.2, 0.3)))(*sample)


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(TypeError):
        PolicyTransform(3)


def test_a_policy_can_be_given_in_any_form(tmp_path: Any) -> None:
    policy = Policy()
    path = tmp_path / "policy.json"
    policy.spec().save(path)
    for given in (policy, policy.spec(), path, str(path), policy.spec().dumps()):
        assert PolicyTransform(given).policy.spec == policy.spec()


@pytest.mark.parametrize("kind", [PolicyTransform, ForKornia, ForTimm, ForAlbumentations])
def test_exports_of_a_policy_in_evaluation_mode_still_augment(kind: Any) -> None:
    policy = Uniform(1, ["Invert"], application=1.0).eval()
    transform, image = kind(policy), np.full((4, 4, 3), 20, np.uint8)
    if isinstance(transform, torch.nn.Module):
        found = transform.eval()(torch.full((1, 3, 4, 4), 20 / 255))
        assert found == pytest.approx(torch.full((1, 3, 4, 4), 235 / 255))
    elif kind is ForTimm:
        assert transform(Image.fromarray(image)).getpixel((0, 0)) == (235,) * 3
    else:
        assert (transform(image=image)["image"] == 235).all()


def test_an_operation_of_ones_own_moves_images_but_nothing_beside_them() -> None:
    transform = PolicyTransform(with_swirl())
    image = torch.rand(3, 5, 6)
    assert torch.equal(transform(image), image.flip(-1))
    # With the first image, however seldom it is drawn.
    with pytest.raises(ValueError, match="Swirl"):
        PolicyTransform(with_swirl(1e-9))(tv_tensors.Image(image), tv_tensors.Mask(torch.zeros(5, 6)))


def test_the_transform_works_in_a_pipeline_and_prints() -> None:
    transform = PolicyTransform(uneven())
    pipeline = v2.Compose([v2.RandomHorizontalFlip(), transform, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    image, label = pipeline(Image.fromarray(noise(16, 20, 3).numpy()), 3)
    assert image.shape == (3, 16, 20)
    assert image.dtype == torch.float32
    assert label == 3
    assert "PolicyTransform(stages=3, operations=14, fill=0.0)" in repr(pipeline)


def test_pickling_keeps_nothing_of_the_images_it_has_seen() -> None:
    transform = PolicyTransform(uneven())
    transform(noise(3, 16, 20))
    assert len(pickle.dumps(transform)) == len(pickle.dumps(PolicyTransform(uneven())))


class Draws(Dataset[Tensor]):
    """The draws of a transform, as numbers."""

    def __init__(self, spec: PolicySpec) -> None:
        self.transform = PolicyTransform(spec)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        self.transform(torch.zeros(3, 4, 4, dtype=torch.uint8))
        return torch.tensor([[step.operation, step.applied, step.sign] for step in self.transform.sample()])


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_draw_differently_and_again_the_same_for_the_same_seed(method: str) -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        loader = DataLoader(Draws(uneven()), batch_size=12, num_workers=2, multiprocessing_context=method)
        first, second = loader  # one batch a worker
        assert not torch.equal(first, second)
        runs.append(torch.cat([first, second]))
    assert torch.equal(runs[0], runs[1])
