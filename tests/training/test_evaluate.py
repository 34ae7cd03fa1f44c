"""Scores, against a slow float64 computation of one image at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from madao.policy import BaseAugmentation
from madao.tasks import EvalResult
from madao.training.evaluate import evaluate

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randint(0, 256, (23, 3, 11, 14), generator=GENERATOR, dtype=torch.uint8)
LABELS = torch.randint(0, 5, (23,), generator=GENERATOR)
MEAN, STD = (0.2, 0.5, 0.6), (0.3, 0.2, 0.25)


def network(side: int = 8) -> nn.Sequential:
    """Other in training than in evaluation."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * side * side, 5))
    with torch.no_grad():
        model[0].running_mean.copy_(torch.tensor([0.1, -0.2, 0.3]))  # type: ignore[operator]
        model[0].running_var.copy_(torch.tensor([0.5, 1.5, 2.0]))  # type: ignore[operator]
    return model


def standard(**settings: Any) -> BaseAugmentation:
    given: dict[str, Any] = {"size": 8, "mean": MEAN, "std": STD, "cutout": 6, "flip": True}
    return BaseAugmentation(**(given | settings))


def split(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(IMAGES.split(list(sizes)), LABELS.split(list(sizes)), strict=True))


def slow(model: nn.Sequential, mean: Any = MEAN, std: Any = STD) -> EvalResult:
    """One image at a time, in float64."""
    weight, bias = (value.detach().double().numpy() for value in model[3].parameters())
    batch_mean = np.array([0.1, -0.2, 0.3], dtype=np.float32).astype(float)
    batch_var = np.array([0.5, 1.5, 2.0])
    losses, num_errors = [], []
    for image, label in zip(IMAGES.numpy(), LABELS.tolist(), strict=True):
        pixels = image[:, 1:9, 3:11].astype(float) / 255  # of 11 × 14, the middle
        pixels = (pixels - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
        pixels = (pixels - batch_mean[:, None, None]) / np.sqrt(batch_var + 1e-5)[:, None, None]
        logits = weight @ pixels.reshape(-1) + bias
        losses.append(np.log(np.exp(logits).sum()) - logits[label])
        num_errors.append(int(np.argmax(logits)) != label)
    return EvalResult(float(np.mean(losses)), float(np.mean(num_errors)), len(losses))


def same(found: EvalResult, expected: EvalResult) -> None:
    assert found.count == expected.count
    assert found.error == expected.error
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_it_equals_a_slow_float64_computation(training: bool) -> None:
    model = network().train(training)
    expected = slow(model)
    assert 0 < expected.error < 1
    same(evaluate(model, split(10, 10, 3), standard()), expected)


def test_the_middle_is_cut_and_normalised() -> None:
    seen: list[Tensor] = []
    model = network()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    evaluate(model, split(23), standard())
    expected = (IMAGES[:, :, 1:9, 3:11] / 255 - torch.tensor(MEAN).reshape(3, 1, 1)) / torch.tensor(STD).reshape(
        3, 1, 1
    )
    torch.testing.assert_close(seen[0], expected)
    evaluate(model, split(23), standard(mean=None, std=None))
    torch.testing.assert_close(seen[1], IMAGES[:, :, 1:9, 3:11] / 255)
    same(evaluate(model, split(23), standard(mean=None, std=None)), slow(model, (0, 0, 0), (1, 1, 1)))


@pytest.mark.parametrize("sizes", [(23,), (1,) * 23, (22, 1), (4, 11, 8)])
def test_how_images_are_batched_does_not_matter(sizes: tuple[int, ...]) -> None:
    model = network()
    same(evaluate(model, split(*sizes), standard()), slow(model))


def test_nothing_to_score_gives_zeros() -> None:
    assert evaluate(network(), [], standard()) == EvalResult(0.0, 0.0, 0)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_restored(training: bool) -> None:
    model = network().train(training)
    modes: list[bool] = []
    model[3].register_forward_hook(lambda module, *_: modes.append(module.training))
    evaluate(model, split(20, 3), standard())
    assert modes == [False, False]
    assert [module.training for module in model.modules()] == [training] * 5


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("who", ["model", "images"])
def test_the_mode_is_restored_after_an_exception(training: bool, who: str) -> None:
    model = network(side=8 if who == "images" else 7).train(training)

    def broken() -> Iterator[tuple[Tensor, Tensor]]:
        yield IMAGES, LABELS
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone" if who == "images" else "shapes"):
        evaluate(model, broken(), standard())
    assert [module.training for module in model.modules()] == [training] * 5


def test_a_part_that_was_kept_in_evaluation_mode_stays_there() -> None:
    model = network().train()
    model[0].eval()  # as batch norms are frozen
    evaluate(model, split(23), standard())
    assert [module.training for module in model] == [False, True, True, True]


def test_the_model_is_only_looked_at() -> None:
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    evaluate(model, split(20, 3), standard())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_half_precision_is_that_of_the_forward_pass_only() -> None:
    model = network()
    kinds: list[torch.dtype] = []
    model[3].register_forward_hook(lambda _, __, output: kinds.append(output.dtype))
    exact = evaluate(model, split(20, 3), standard())
    half = evaluate(model, split(20, 3), standard(), autocast=torch.bfloat16)
    assert kinds == [torch.float32] * 2 + [torch.bfloat16] * 2
    assert half.count == 23
    assert half.loss == pytest.approx(exact.loss, rel=0.02)
    assert half.loss != exact.loss
