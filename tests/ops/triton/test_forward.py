"""The fused kernels against `grouped`: on a GPU where there is one, else in Triton's interpreter."""

import sys

import pytest
import torch
from torch import Tensor

import madao
from madao.ops import OPERATIONS, PAPER, choose
from madao.ops.dispatch import grouped

kernels = pytest.importorskip("madao.ops.triton.forward", reason="needs Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ALL = tuple(OPERATIONS[name] for name in PAPER)
SIZES = [(1, 32, 32), (3, 32, 32), (3, 19, 40), (3, 1, 1), (1, 2, 5), (3, 96, 100)]


def batch(channels: int, height: int, width: int, copies: int, seed: int = 0) -> Tensor:
    """Noise, few levels, constants and narrow ranges."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (copies, channels, height, width), generator=generator, dtype=torch.uint8)
    images[1::4] = images[1::4] // 64 * 10 + 100
    images[2::4] = images[2::4] % 2 + 127
    images[3::8] = 77
    return images.to(DEVICE)


def compare(images: Tensor, name: str, magnitude: Tensor, sign: Tensor, fill: float | tuple[float, ...]) -> Tensor:
    operations = (OPERATIONS[name],)
    choice = torch.zeros(len(images), dtype=torch.int64, device=DEVICE)
    before = images.clone()
    arguments = (operations, choice, magnitude.to(DEVICE), sign.to(DEVICE), None, fill)
    expected: Tensor = grouped(images, *arguments)
    found: Tensor = kernels.fused(images, *arguments)
    assert found.dtype == images.dtype
    assert torch.equal(images, before), "the input was written to"
    return (expected.double() - found.double()).abs()


STRENGTHS = torch.tensor([0.0, 1.0, 0.3, 0.62, 0.62, 0.9, 0.5, 0.11])
SIGNS = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0])


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", PAPER)
def test_levels_are_those_of_the_reference(name: str, size: tuple[int, int, int]) -> None:
    colour = (0.1, 0.6, 1.0)[: size[0]]
    few = 2 if size[1] > 40 else len(STRENGTHS)  # the interpreter takes its time
    for fill in (0.0, 0.5, colour)[-few:]:
        difference = compare(batch(*size, few), name, STRENGTHS[-few:], SIGNS[-few:], fill)
        if OPERATIONS[name].geometric:  # float32 places may fall on either side of a step between two levels
            assert difference.max() <= 1
            assert (difference > 0).double().mean() < 2e-3
        else:
            assert difference.max() == 0
            break  # the fill is not looked at


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", PAPER)
def test_floats_are_those_of_the_reference(name: str, size: tuple[int, int, int]) -> None:
    few = 2 if size[1] > 40 else len(STRENGTHS)
    images = batch(*size, few).float() / 255
    images[::2] *= 0.997  # between two levels
    colour = (0.1, 0.6, 1.0)[: size[0]]
    assert compare(images, name, STRENGTHS[-few:], SIGNS[-few:], colour).max() < 1e-5


def test_halves_between_levels_are_rounded_to_even() -> None:
    images = (torch.arange(256, device=DEVICE).reshape(1, 1, 16, 16) + 0.5).clamp(max=255).float() / 255
    for name in ("Equalize", "Posterize"):
        assert compare(images, name, torch.tensor([0.6]), torch.ones(1), 0.0).max() < 1e-6


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_each_image_has_its_own_operation(kind: torch.dtype) -> None:
    operations = choose(limits={"Rotate": 75, "Solarize": 100, "Color": 1.5}, exclude=["Invert"])
    count = 3 * len(operations)
    generator = torch.Generator().manual_seed(1)
    images = batch(3, 12, 17, count)
    images = images if kind == torch.uint8 else images / 255
    choice = torch.randperm(count, generator=generator) % len(operations)
    magnitude, applied = torch.rand(count, generator=generator), torch.rand(count, generator=generator) < 0.7
    sign = torch.randint(0, 2, (count,), generator=generator) * 2.0 - 1
    applied = applied.to(DEVICE)
    draw = choice.to(DEVICE), magnitude.to(DEVICE), sign.to(DEVICE), applied
    expected, found = grouped(images, operations, *draw), kernels.fused(images, operations, *draw)
    difference = (expected.double() - found.double()).abs()
    assert difference.max() <= (1 if kind == torch.uint8 else 1e-5)
    assert torch.equal(found[~applied], images[~applied])
    assert not torch.equal(found[applied], images[applied])


def test_views_and_empty_batches() -> None:
    whole = batch(3, 10, 10, 8)
    view = whole[::2].transpose(2, 3)
    draw = torch.zeros(4, dtype=torch.int64, device=DEVICE), *(torch.ones(4, device=DEVICE) for _ in range(2))
    assert torch.equal(kernels.fused(view, ALL[5:6], *draw), 255 - view)
    empty = torch.zeros(0, dtype=torch.int64, device=DEVICE), *(torch.ones(0, device=DEVICE) for _ in range(2))
    assert kernels.fused(whole[:0], ALL, *empty).shape == (0, 3, 10, 10)


def test_a_choice_that_is_no_operation_leaves_the_image_alone() -> None:
    images = batch(3, 8, 8, 3)
    choice = torch.tensor([-1, 14, 2**40], device=DEVICE)
    ones = torch.ones(3, device=DEVICE)
    assert torch.equal(kernels.fused(images, ALL, choice, ones, ones), images)


def test_unsupported_images_and_operations_use_the_reference() -> None:
    images = batch(3, 8, 8, 2)
    assert kernels.supported(images, ALL)
    assert kernels.supported(images.float(), ALL)
    assert not kernels.supported(images.double(), ALL)
    own = OPERATIONS["Invert"].__class__("Invert", lambda images: images)
    assert not kernels.supported(images, (own,))


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_policies_take_the_kernels_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["madao.ops.dispatch"]  # its name is that of the function too
    policy, images = madao.Policy(seed=3).cuda(), batch(3, 32, 32, 64)
    draw = policy.sample(images)
    found = policy.augment(images, draw)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_kernels", lambda: None)
        reference = policy.augment(images, draw)
        assert (found.int() - reference.int()).abs().float().mean() < 0.05
        patch.setattr(module, "grouped", None)
        with pytest.raises(TypeError):
            policy.augment(images, draw)
    monkeypatch.setattr(module, "grouped", None)
    assert torch.equal(policy.augment(images, draw), found)
