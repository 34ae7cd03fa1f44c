"""The inner step by itself; as a graph where there is a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao import BaseAugmentation, Policy
from madao.distributed.group import Shard
from madao.tasks import Classification
from madao.training.inner_step import GraphedStep, InnerStep

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def parts(device: str, accumulate: int = 1, clip: float | None = None, policy: bool = True) -> InnerStep:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).to(
        device
    )
    rate = torch.tensor(0.05, device=device) if device == "cuda" else 0.05
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, fused=device == "cuda")
    standard = BaseAugmentation(padding=1, cutout=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    learned = Policy(seed=1).to(device) if policy else None
    return InnerStep(
        model,
        Classification(),
        backward=Tensor.backward,
        optimizer=optimizer,
        base_augmentation=standard,
        policy=learned,
        accumulate=accumulate,
        clip=clip,
    )


def batches(device: str, count: int = 12, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randint(0, 256, (size, 3, 8, 8), generator=generator, dtype=torch.uint8).to(device),
            torch.randint(0, 5, (size,), generator=generator).to(device),
        )
        for _ in range(count)
    ]


def test_a_step_is_sgd_on_what_the_draw_made_of_the_batch() -> None:
    step, ((images, labels),) = parts("cpu", policy=False), batches("cpu", 1)
    reference = parts("cpu", policy=False)
    draw = reference.base_augmentation.sample(images)
    outputs = reference.model(reference.base_augmentation.augment(images, draw))
    loss = F.cross_entropy(outputs, labels)
    loss.backward()
    reference.optimizer.step()
    trained = step(images, labels, augment=True)
    assert trained.loss == loss.detach()
    assert trained.num_errors == (outputs.argmax(1) != labels).sum()
    assert torch.equal(trained.draw.top, draw.top)
    assert all(parameter.grad is None for parameter in step.model.parameters()), "outer steps may use their memory"
    for a, b in zip(step.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_policy_acts_only_where_asked() -> None:
    (images, labels), *_ = batches("cpu", 1)
    with_policy, exclude, none = parts("cpu"), parts("cpu"), parts("cpu", policy=False)
    losses = [
        with_policy(images, labels, True).loss,
        exclude(images, labels, False).loss,
        none(images, labels, True).loss,
    ]
    assert losses[0] != losses[1] == losses[2]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_part_without_images_adds_nothing(clip: float | None) -> None:
    """Of several processes one whose images could not all be read: it takes part in every pass, and weighs nothing."""
    (images, labels), *_ = batches("cpu", 1, size=2)
    found = []
    for accumulate, world in ((3, 2), (2, 1)):
        step = parts("cpu", accumulate, clip)
        calls: list[int] = []
        step.model.register_forward_pre_hook(lambda _, inputs, calls=calls: calls.append(len(inputs[0])))
        if world == 2:
            step.shard, step.world = Shard(0, 2, 2), 2
            step.backward = lambda loss: (loss / 2).backward()  # the mean with one that has nothing
        found.append((step(images, labels, True), step.model.state_dict(), calls))
    (shared, weights, calls), (alone, expected, others) = found
    assert (calls, others) == ([1, 1, 0], [1, 1])
    assert torch.equal(shared.loss, alone.loss)
    assert torch.equal(shared.num_errors, alone.num_errors)
    for name, value in weights.items():
        assert name.endswith("num_batches_tracked") or torch.equal(value, expected[name]), name


@needs_gpu
@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, 0.5)])
def test_a_graph_trains_as_its_steps_do(accumulate: int, clip: float | None) -> None:
    said: list[str] = []
    plain, recorded = parts("cuda", accumulate, clip), parts("cuda", accumulate, clip)
    assert recorded.policy is not None
    graphed = GraphedStep(recorded, [recorded.base_augmentation, recorded.policy], said.append)
    for number, (images, labels) in enumerate(batches("cuda")):
        augment = number % 3 > 0  # two graphs, taking turns
        expected, found = plain(images, labels, augment), graphed(images, labels, augment)
        assert torch.equal(expected.cropped, found.cropped)
        assert torch.allclose(expected.loss, found.loss, rtol=1e-4), number
    assert [recording.graph is not None for recording in graphed.recorder._recordings.values()] == [True, True]
    assert not said
    for a, b in zip(plain.model.parameters(), recorded.model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)


@needs_gpu
def test_a_graph_sees_new_rates_and_new_policies() -> None:
    step = parts("cuda")
    assert step.policy is not None
    graphed = GraphedStep(step, [step.base_augmentation, step.policy], print)
    data = batches("cuda", 8)
    for images, labels in data[:6]:
        graphed(images, labels, True)
    before = [parameter.clone() for parameter in step.model.parameters()]
    for group in step.optimizer.param_groups:
        group["lr"].fill_(0.0)
    graphed(*data[6], True)
    assert all(torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))


@needs_gpu
def test_what_cannot_be_recorded_runs_as_it_is_and_says_so_once() -> None:
    said: list[str] = []
    step = parts("cuda")
    inner = step.model

    class Waits(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            outputs: Tensor = inner(images)
            return outputs * (2 if float(outputs.detach().sum()) > 1e9 else 1)  # the host waits for the device

    step.model = Waits()
    assert step.policy is not None
    graphed = GraphedStep(step, [step.base_augmentation, step.policy], said.append)
    losses = [float(graphed(images, labels, True).loss) for images, labels in batches("cuda")]
    assert len(said) == 1
    assert "without a CUDA graph" in said[0]
    assert all(loss == loss for loss in losses)
    assert losses[-1] != losses[-2]
