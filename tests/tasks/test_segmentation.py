"""Masks that move with their images, against Pillow, slow loops and scikit-learn."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import jaccard_score
from torch import Tensor

from madao.cli import main
from madao.cli.demo import family_share
from madao.labels import IGNORED
from madao.ops import OPERATIONS
from madao.ops.geometric import warp
from madao.policy import BaseAugmentation, Draw, Policy
from madao.tasks import Segmentation
from madao.training.inner_step import InnerStep
from madao.training.run.result import Result


def masks(count: int = 6, height: int = 12, width: int = 16, seed: int = 0) -> Tensor:
    """Blobs of four classes, and pixels that do not count."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 4, (count, 1, height // 4, width // 4), generator=generator).float()
    found = F.interpolate(coarse, size=(height, width))[:, 0].to(torch.uint8)
    found[:, 2:4, 5] = IGNORED
    return found


def draw_of(policy: Policy, *stages: list[tuple[str, float, float, bool]]) -> Draw:
    """A draw from operation, magnitude, sign and whether it is applied, for each image of each stage."""
    names = [operation.name for operation in policy.operations]
    return Draw(
        choice=torch.tensor([[names.index(name) for name, *_ in stage] for stage in stages]),
        applied=torch.tensor([[applied for *_, applied in stage] for stage in stages]),
        magnitude=torch.tensor([[magnitude for _, magnitude, _, _ in stage] for stage in stages]),
        sign=torch.tensor([[sign for _, _, sign, _ in stage] for stage in stages]),
    )


def test_whole_pixels_shift_the_mask_exactly() -> None:
    policy, mask = Policy(), masks(1, 12, 16)
    for sign, pixels in ((1.0, 4), (-1.0, -4)):
        draw = draw_of(policy, [("TranslateX", 4 / 16 / 0.45, sign, True)])
        expected = torch.full_like(mask, IGNORED)
        for column in range(16):
            if 0 <= column + pixels < 16:
                expected[..., column] = mask[..., column + pixels]
        assert torch.equal(policy.augment_masks(mask, draw), expected)


def test_each_image_has_its_own_operation_and_tones_leave_the_mask() -> None:
    policy, mask = Policy(), masks(6)
    names = ["ShearX", "Rotate", "Invert", "TranslateY", "Solarize", "Rotate"]
    stage = [(name, 0.8, 1.0, index != 5) for index, name in enumerate(names)]
    moved = policy.augment_masks(mask, draw_of(policy, stage))
    for index in (2, 4, 5):  # tones, and an operation that is not applied
        assert torch.equal(moved[index], mask[index])
    for index in (0, 1, 3):
        alone = policy.augment_masks(mask[index : index + 1], draw_of(policy, [stage[index]]))
        assert torch.equal(moved[index], alone[0])
        assert not torch.equal(moved[index], mask[index])
    twice = policy.augment_masks(mask, draw_of(policy, stage, stage[::-1]))
    assert torch.equal(twice, policy.augment_masks(moved, draw_of(policy, stage[::-1])))


@pytest.mark.parametrize("scale", [None, 0.5])
def test_training_sees_masks_where_their_images_are(scale: float | None) -> None:
    """Images whose level is their class still are such, after the middle, crop, flip and policy of an inner step."""
    mask = torch.zeros(60, 30, 30, dtype=torch.uint8)
    mask[:, 6:20, 9:26] = 1
    policy = Policy(seed=2, exclude=[name for name, operation in OPERATIONS.items() if not operation.geometric])
    standard = BaseAugmentation(padding=3, cutout=0, size=24, scale=scale)
    seen: list[Tensor] = []

    class Spied(Segmentation):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            seen.append(targets)
            return super().loss(outputs, targets)

    model = torch.nn.Conv2d(1, 2, 1)
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, 0]))
    step = InnerStep(
        model,
        Spied(2),
        backward=Tensor.backward,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        base_augmentation=standard,
        policy=policy,
    )
    trained = step(200 * mask[:, None], mask, True)
    levels, targets = 255 * seen[0], seen[1]
    clear = (targets != IGNORED) & ((levels < 5) | (levels > 195))  # else between two levels
    assert torch.equal(levels[clear] > 100, targets[clear] == 1)
    assert clear.float().mean() > 0.6
    assert trained.targets.shape == trained.cropped[:, 0].shape == (60, 24, 24)  # before the policy, for outer steps
    assert not torch.equal(trained.targets, targets)


@pytest.mark.parametrize("size", [None, 10])
def test_standard_crops_move_masks_as_images(size: int | None) -> None:
    images = torch.randint(0, 255, (64, 1, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    standard = BaseAugmentation(padding=2, cutout=4, size=size)
    draw = standard.sample(images)
    cropped, moved = standard.before(images, draw)[:, 0], standard.before_masks(images[:, 0], draw)
    inside = moved != IGNORED
    assert torch.equal(cropped[inside], moved[inside])
    assert not cropped[~inside].any()
    assert 0 < (~inside).float().mean() < 0.4


def test_resized_crops_read_the_nearest_pixel() -> None:
    mask = torch.randint(0, 255, (20, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    standard = BaseAugmentation(size=7, scale=0.2, seed=1)
    draw = standard.sample(mask[:, None])
    moved = standard.before_masks(mask, draw)
    assert moved.shape == (20, 7, 7)
    assert draw.height is not None
    assert draw.width is not None
    checked = 0
    for b in range(20):
        for row in range(7):
            for column in range(7):
                across = (6 - column if draw.flipped[b] else column) + 0.5
                y = 12 * float(draw.top[b] + draw.height[b] * (row + 0.5) / 7)
                x = 12 * float(draw.left[b] + draw.width[b] * across / 7)
                if min(y % 1, 1 - y % 1, x % 1, 1 - x % 1) > 1e-4:  # else between two pixels
                    assert moved[b, row, column] == mask[b, int(y), int(x)]
                    checked += 1
    assert checked > 900


def test_losses_are_the_mean_over_the_pixels_of_each_image_that_count() -> None:
    task, targets = Segmentation(4), masks()
    targets[5] = IGNORED  # nothing of it counts
    outputs = torch.randn(6, 4, 12, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    losses = task.losses(outputs, targets)
    for b in range(5):
        expected = F.cross_entropy(outputs[b : b + 1], targets[b : b + 1].long(), ignore_index=IGNORED)
        torch.testing.assert_close(losses[b], expected)
    assert losses[5] == 0
    torch.testing.assert_close(task.losses(outputs, task.soft_targets(Policy(), targets, None).double()), losses)
    num_errors = [
        ((o.argmax(0) != t)[t != IGNORED]).double().mean() for o, t in zip(outputs[:5], targets[:5], strict=True)
    ]
    assert float(task.num_errors(outputs, targets)) == pytest.approx(float(sum(num_errors)))


def test_outer_steps_see_the_hard_mask_with_the_derivative_of_a_soft_one() -> None:
    task, policy, targets = Segmentation(4), Policy(stages=1, operations=["Rotate"]).double(), masks()
    with torch.no_grad():
        policy.application_logits.fill_(20)
    draw = policy.sample(targets[:, None], relaxed=True).pathwise()
    given = task.soft_targets(policy, targets, [draw])
    hard = policy.augment_masks(targets, draw.detach())
    counts = (hard != IGNORED).sum((1, 2))
    weights = torch.randn(given.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([hard == k for k in range(4)], 1) / counts.reshape(-1, 1, 1, 1)
    torch.testing.assert_close(given.detach(), expected.float())
    (found,) = torch.autograd.grad((given * weights).sum(), policy.magnitude_logits)

    def soft(shift: float) -> float:
        magnitude = (policy.magnitude_logits.detach()[0, 0] + shift).sigmoid() * torch.ones(6, dtype=torch.float64)
        matrix = OPERATIONS["Rotate"].matrix(30 * magnitude * draw.sign[0], 12, 16)  # type: ignore[misc]
        one_hot = torch.stack([targets == k for k in range(4)], 1).double()
        read = warp(one_hot, matrix) * (hard != IGNORED)[:, None] / counts.reshape(-1, 1, 1, 1)
        return float((read * weights).sum())

    assert float(found) == pytest.approx((soft(1e-5) - soft(-1e-5)) / 2e-5, rel=2e-3)
    assert abs(float(found)) > 1e-3


def test_miou_is_that_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = masks(8)
    targets[targets == 3] = 0  # a class that is neither there nor found
    outputs = torch.randn(8, 4, 12, 16, generator=generator)
    outputs[:, 3] = -100
    measure = Segmentation(4).measure()
    for start, stop in ((0, 3), (3, 8)):
        measure.add(outputs[start:stop], targets[start:stop])
    score = measure.score(measure.sums())
    counted = targets != IGNORED
    found, truth = outputs.argmax(1)[counted], targets[counted]
    expected = jaccard_score(truth, found, labels=range(3), average="macro")
    assert score.error == pytest.approx(1 - expected)
    assert score.metrics == {
        "mIoU": pytest.approx(expected),
        "pixel_error": pytest.approx(float((found != truth).double().mean())),
    }
    assert score.count == 8
    assert score.loss == pytest.approx(float(Segmentation(4).losses(outputs, targets).mean()))


@pytest.mark.slow
def test_a_synthetic_rotation_is_found_and_miou_rises(tmp_path: Path) -> None:
    results = {}
    for method in ("base", "learned"):
        settings = ["--task.name=segmentation", "--data.name=shapes", "--data.shift=rotate", "--augment.crop=none"]
        settings += ["--epochs=25", "--batch_size=32", "--outer.every=3", "--outer.lr=0.05", "--outer.batch_size=64"]
        settings += [f"--augment.method={method}", "--logger=none", "--evaluate_every=25"]
        out = tmp_path / method
        assert main(["train", *settings, f"--out={out}"]) == 0
        results[method] = Result.load(out)
    base, learned = results["base"], results["learned"]
    assert base is not None
    assert learned is not None
    share, times, rank = family_share(learned, "rotate")
    assert rank == 1
    assert times > 2.5, share
    assert learned.test_error is not None
    assert base.test_error is not None
    assert learned.test_error < base.test_error - 0.05
