"""The kernels' backward pass against autograd through `grouped`: on a GPU where there is one, else interpreted."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import madao
from madao.ops import OPERATIONS, PAPER, Operation, choose
from madao.ops.dispatch import dispatch_unchecked, grouped
from madao.ops.geometric import Fill

gradients = pytest.importorskip("madao.ops.triton.backward", reason="needs Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ALL = tuple(OPERATIONS[name] for name in PAPER)
STRENGTHS = torch.tensor([0.0, 1.0, 0.31, 0.62, 0.97, 1.0, 0.05, 0.0])
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
FILLS: dict[int, Fill] = {1: 0.3, 3: (0.1, 0.6, 1.0)}

Apply = Callable[..., Tensor]
Numbers = Sequence[float]


def batch(channels: int, height: int, width: int, count: int, seed: int = 0) -> Tensor:
    """Noise; five levels, among them 0 and 1; black and white; a white channel and one narrower than a level."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, channels, height, width, generator=generator)
    images[1::3] = (images[1::3] * 4).round() / 4
    images[2::6] = images[2::6].round()
    images[5::6, 0] = 1.0
    images[5::6, -1] = 0.4 + 0.001 * images[5::6, -1]
    return images.to(DEVICE)


def noise(shape: torch.Size, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def derivatives(
    apply: Apply,
    images: Tensor,
    operations: Sequence[Operation],
    choice: Tensor,
    magnitude: Tensor,
    sign: Tensor,
    applied: Tensor | None = None,
    fill: Fill = 0.0,
) -> tuple[Tensor, Tensor]:
    """The gradients of images and magnitude of a random weighing of the result."""
    x, m = images.detach().clone().requires_grad_(), magnitude.detach().clone().requires_grad_()
    result = apply(x, operations, choice, m, sign, applied, fill)
    to_images, to_magnitude = torch.autograd.grad(
        (result * noise(images.shape).to(images.dtype)).sum(), (x, m), allow_unused=True
    )
    # Where no operation has a magnitude autograd has no gradient, where the kernels have zeros.
    return to_images, torch.zeros_like(m) if to_magnitude is None else to_magnitude


def assert_close(found: Sequence[Tensor], expected: Sequence[Tensor], relative: float = 1e-4) -> None:
    """To rounding of float32, by the largest gradient: sums cancel."""
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one, other.to(one.dtype), rtol=0, atol=relative * scale)


def drawn(choice: Tensor, seed: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Choice, magnitude and sign."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.rand(len(choice), generator=generator)
    sign = torch.randint(0, 2, (len(choice),), generator=generator) * 2.0 - 1
    return choice.to(DEVICE), magnitude.to(DEVICE), sign.to(DEVICE)


@pytest.mark.parametrize("size", [(3, 16, 32), (1, 17, 9), (3, 5, 40)], ids=str)
@pytest.mark.parametrize("name", PAPER)
def test_gradients_are_those_of_the_reference(name: str, size: tuple[int, int, int]) -> None:
    images = batch(*size, len(STRENGTHS))
    strengths = STRENGTHS.clone()
    if OPERATIONS[name].geometric and size[1:] != (16, 32):  # pixels on pixels only where they are so exactly
        strengths = strengths.clamp(0.013, 0.987)
    draw = torch.zeros(len(images), dtype=torch.int64, device=DEVICE), strengths.to(DEVICE), SIGNS.to(DEVICE)
    arguments = images, (OPERATIONS[name],), *draw, None, FILLS[size[0]]
    found, expected = derivatives(gradients.fused_differentiable, *arguments), derivatives(grouped, *arguments)
    assert_close(found, expected)
    idle = OPERATIONS[name].range is None or (name == "Color" and size[0] == 1)
    assert bool(found[1].any()) != idle


@pytest.mark.parametrize("size", [(1, 46, 47), (3, 1, 1), (3, 2, 5), (3, 33, 32)], ids=str)
def test_images_of_many_blocks_or_few_pixels(size: tuple[int, int, int]) -> None:
    assert size[1] * size[2] > gradients._LARGE or size[0] == 3
    images = batch(*size, len(ALL))
    arguments = images, ALL, *drawn(torch.arange(len(ALL))), None, 0.3
    assert_close(derivatives(gradients.fused_differentiable, *arguments), derivatives(grouped, *arguments), 2e-4)


def test_gradients_are_right_in_double_precision() -> None:
    images = torch.rand(2 * len(ALL), 3, 11, 13, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    choice, magnitude, sign = drawn(torch.arange(len(images)) % len(ALL))
    expected = derivatives(grouped, images.double(), ALL, choice, magnitude.double(), sign.double(), None, 0.3)
    found = derivatives(gradients.fused_differentiable, images, ALL, choice, magnitude, sign, None, 0.3)
    assert_close(found, expected)


def test_each_image_has_its_own_operation_and_may_skip_it() -> None:
    operations = choose(limits={"Rotate": 75, "Solarize": 100, "Color": 1.5}, exclude=["Invert"])
    count = 3 * len(operations)
    generator = torch.Generator().manual_seed(1)
    images = batch(3, 6, 9, count)
    draw = drawn(torch.randperm(count, generator=generator) % len(operations))
    applied = (torch.rand(count, generator=generator) < 0.7).to(DEVICE)
    arguments = images, operations, *draw, applied, 0.2
    found = derivatives(gradients.fused_differentiable, *arguments)
    assert_close(found, derivatives(grouped, *arguments))
    assert torch.equal(found[0][~applied], noise(images.shape)[~applied])
    assert not found[1][~applied].any()
    assert found[1][applied].any()


def test_a_choice_that_is_no_operation_passes_the_gradient_on() -> None:
    images = batch(3, 4, 4, 3)
    ones = torch.ones(3, device=DEVICE)
    choice = torch.tensor([-1, 14, 2**40], device=DEVICE)
    found = derivatives(gradients.fused_differentiable, images, ALL, choice, ones, ones)
    assert torch.equal(found[0], noise(images.shape))
    assert not found[1].any()


def test_tensors_may_lie_in_memory_in_any_way() -> None:
    """Every second value of a draw, one value for all, turned images, and a cotangent that is one number."""
    images = batch(3, 5, 7, 2 * len(ALL))[::2].transpose(2, 3)
    choice, magnitude, _ = (field[::2] for field in drawn(torch.arange(2 * len(ALL)) // 2))
    sign = torch.ones(1, device=DEVICE).expand(len(ALL))
    applied = torch.tensor([True, False] * len(ALL), device=DEVICE)[::2]

    def value_and_gradients(apply: Apply) -> tuple[Tensor, ...]:
        x, m = images.detach().requires_grad_(), magnitude.detach().requires_grad_()
        result = apply(x, ALL, choice, m, sign, applied, 0.3)
        return result.detach(), *torch.autograd.grad(result.sum(), (x, m))

    assert_close(value_and_gradients(gradients.fused_differentiable), value_and_gradients(grouped))


def test_a_magnitude_in_double_precision_gets_its_gradient_so() -> None:
    choice, magnitude, sign = drawn(torch.tensor([4, 11]))
    found = derivatives(gradients.fused_differentiable, batch(3, 4, 4, 2), ALL, choice, magnitude.double(), sign)
    assert found[1].dtype == torch.float64


def test_empty_batch() -> None:
    images, choice = torch.rand(0, 3, 8, 8, device=DEVICE), torch.zeros(0, dtype=torch.int64)
    to_images, to_magnitude = derivatives(gradients.fused_differentiable, images, ALL, *drawn(choice))
    assert to_images.shape == images.shape
    assert to_magnitude.shape == (0,)


@pytest.mark.parametrize("wanted", ["images", "magnitude"])
def test_only_what_is_wanted(wanted: str) -> None:
    images, draw = batch(3, 5, 6, 6), drawn(torch.tensor([4, 6, 8, 9, 11, 13]))
    both = derivatives(gradients.fused_differentiable, images, ALL, *draw, None, 0.3)
    images, magnitude = images.requires_grad_(wanted == "images"), draw[1].requires_grad_(wanted == "magnitude")
    result = gradients.fused_differentiable(images, ALL, draw[0], magnitude, draw[2], None, 0.3)
    (result * noise(images.shape)).sum().backward()
    given = images.grad, magnitude.grad
    assert [gradient is not None for gradient in given] == [wanted == "images", wanted == "magnitude"]
    for one, other in zip(given, both, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("name", "magnitude", "sign"), [("Brightness", 0.0, 1), ("Brightness", 1.0, 1), ("Contrast", 0.0, 1)]
)
def test_values_that_meet_the_clip_exactly(name: str, magnitude: float, sign: float) -> None:
    """At exactly 0 and 1 a gradient passes or not as it does for `torch.clamp`; versions of torch differ in that."""
    images = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], device=DEVICE).reshape(1, 1, 1, 5)
    zero = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    draw = zero, torch.tensor([magnitude], device=DEVICE), torch.tensor([sign], device=DEVICE)
    arguments = images, (OPERATIONS[name],), *draw
    found, expected = derivatives(gradients.fused_differentiable, *arguments), derivatives(grouped, *arguments)
    assert_close(found, expected, 1e-6)
    edge = torch.zeros(1, requires_grad=True)
    (passes,) = torch.autograd.grad(edge.clamp(0, 1), edge)
    assert bool(found[0].flatten()[0]) == bool(passes)


def test_pixels_that_share_an_extreme_share_its_gradient() -> None:
    """For t = (v − low) / span and only the middle pixel weighed: 1 to it, t − 1 to the lowest, −t to the highest."""
    images = torch.tensor([0.25, 0.25, 0.375, 0.75, 0.75, 0.75], device=DEVICE).reshape(1, 1, 2, 3).requires_grad_()
    one = torch.ones(1, device=DEVICE)
    result = gradients.fused_differentiable(images, ALL[6:7], torch.zeros_like(one, dtype=torch.int64), one, one)
    (gradient,) = torch.autograd.grad(result.flatten()[2], images)
    expected = torch.tensor([-0.75 / 2, -0.75 / 2, 1.0, -0.25 / 3, -0.25 / 3, -0.25 / 3], device=DEVICE) / 0.5
    torch.testing.assert_close(gradient.flatten(), expected)


def test_values_are_those_of_the_forward_kernels_and_no_other_image_is_kept() -> None:
    images, (choice, magnitude, sign) = batch(3, 6, 5, len(ALL)).requires_grad_(), drawn(torch.arange(len(ALL)))
    magnitude.requires_grad_()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = gradients.fused_differentiable(images, ALL, choice, magnitude, sign)
    assert {tensor.data_ptr() for tensor in kept} <= {x.data_ptr() for x in (images, choice, magnitude, sign)}
    assert torch.equal(result, gradients.fused(images.detach(), ALL, choice, magnitude.detach(), sign))


def test_there_is_no_second_derivative() -> None:
    images, (choice, magnitude, sign) = batch(3, 4, 4, 2), drawn(torch.tensor([4, 11]))
    magnitude.requires_grad_()
    result = gradients.fused_differentiable(images, ALL, choice, magnitude, sign)
    (gradient,) = torch.autograd.grad(result.square().sum(), magnitude, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_inside_of_a_gradient_of_something_else() -> None:
    """As hypergradients have it: the derivative of a model's gradient, taken by torch.func, in the magnitude."""
    # In there tensors do not say that they want a gradient, so that the reference takes no straight-through one.
    exact = tuple(operation for operation in ALL if operation.derivative != "straight-through")
    images, (choice, magnitude, sign) = batch(3, 4, 4, len(exact)), drawn(torch.arange(len(exact)))
    weights = noise(images.shape[1:])

    def of_magnitude(apply: Apply) -> Tensor:
        m = magnitude.detach().clone().requires_grad_()

        def loss(w: Tensor) -> Tensor:
            return (apply(images, exact, choice, m, sign) * w).sum((1, 2, 3)).square().sum()

        direction: Tensor = torch.func.grad(loss)(weights)
        return torch.autograd.grad(direction.sum(), m)[0]

    assert_close([of_magnitude(gradients.fused_differentiable)], [of_magnitude(grouped)])


def test_operations_with_other_derivatives_use_the_reference() -> None:
    images = batch(3, 8, 8, 2)
    assert gradients.differentiable(images, ALL)
    assert not gradients.differentiable(images.double(), ALL)
    assert not gradients.differentiable((images * 255).to(torch.uint8), ALL)
    assert not gradients.differentiable(images, (dataclasses.replace(OPERATIONS["Color"], derivative="none"),))
    assert not gradients.differentiable(images, (Operation("Own", lambda images: images),))


class Pretended(Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(
    ("images", "learned", "recorded", "taken"),
    [
        (torch.rand(1, 3, 4, 4), True, True, "fused_differentiable"),
        (torch.rand(1, 3, 4, 4).requires_grad_(), False, True, "fused_differentiable"),
        (torch.rand(1, 3, 4, 4), False, True, "fused"),
        (torch.rand(1, 3, 4, 4), True, False, "fused"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), True, True, "grouped"),
        (torch.rand(1, 3, 4, 4).double(), True, True, "grouped"),
    ],
)
def test_a_gpu_takes_the_kernels_that_are_needed(
    images: Tensor, learned: bool, recorded: bool, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["madao.ops.dispatch"]  # its name is that of the function too

    def named(name: str) -> Callable[..., Any]:
        return lambda *arguments: name

    kernels = SimpleNamespace(supported=gradients.supported, fused=named("fused"))
    backward = SimpleNamespace(
        differentiable=gradients.differentiable, fused_differentiable=named("fused_differentiable")
    )
    monkeypatch.setattr(module, "_kernels", lambda: kernels)
    monkeypatch.setattr(module, "_kernel_gradients", lambda: backward)
    monkeypatch.setattr(module, "grouped", named("grouped"))
    magnitude, one = torch.ones(1, requires_grad=learned), torch.ones(1)
    with torch.set_grad_enabled(recorded):
        pretended = images.as_subclass(Pretended)
        assert dispatch_unchecked(pretended, ALL, one.long(), magnitude, one) == taken


def logit_gradients(policy: madao.Policy, images: Tensor, relaxed: bool) -> tuple[Tensor, ...]:
    draw = policy.sample(images, torch.Generator(DEVICE).manual_seed(5), relaxed=True)
    result = policy.augment(images, draw if relaxed else draw.pathwise())
    parameters = list(policy.parameters()) if relaxed else [policy.magnitude_logits]
    return (result.detach(), *torch.autograd.grad((result * noise(images.shape)).sum(), parameters))


@pytest.mark.parametrize("relaxed", [True, False])
def test_policies_learn_by_the_kernels_as_by_the_reference(relaxed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = madao.Policy(stages=2, fill=0.3, seed=4, temperature=0.5, application_temperature=0.5).to(DEVICE)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(noise(parameter.shape), alpha=0.3)
    images = torch.rand(32, 3, 6, 8, generator=torch.Generator().manual_seed(6)).to(DEVICE)
    monkeypatch.setattr("madao.policy.base.dispatch_unchecked", gradients.fused_differentiable)
    by_kernels = logit_gradients(policy, images, relaxed)
    policy.fused = False
    assert_close(by_kernels, logit_gradients(policy, images, relaxed))
    assert all(bool(gradient.any(1).all()) for gradient in by_kernels[1:]), "a stage learns nothing"


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_a_relaxed_draw_is_applied_and_differentiated_in_a_cuda_graph() -> None:
    policy, images = madao.Policy(fill=0.3, seed=4).to(DEVICE), torch.rand(64, 3, 32, 32, device=DEVICE)
    draw = policy.sample(images, relaxed=True)
    assert draw.weight is not None
    assert draw.gate is not None
    leaves = [field.detach().requires_grad_() for field in (draw.magnitude, draw.weight, draw.gate)]
    draw = dataclasses.replace(draw, magnitude=leaves[0], weight=leaves[1], gate=leaves[2])
    weights = noise(images.shape)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad((policy.augment(images, draw) * weights).sum(), leaves)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # which fails where the host waits
        found = step()
    images.copy_(torch.rand(images.shape, device=DEVICE))
    graph.replay()
    torch.cuda.synchronize()
    policy.fused = False
    assert_close(found, step(), 1e-3)
