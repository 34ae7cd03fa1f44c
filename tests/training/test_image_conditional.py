"""A policy that looks at images, learned: in a plain loop, by the trainer, and from its own files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from madao import ImagePolicy, PolicySpec
from madao.config.train_config import AugmentConfig, OuterConfig, TrainConfig
from madao.hypergrad import Influence, Relaxed, SameExample, Traced
from madao.outer.outer_step import OuterRequest
from madao.policy.conditional.features import features
from madao.training.run.directory import run_directory
from madao.training.trainer import Trainer
from tests.helpers.conditional import TRAIN, build
from tests.helpers.outer_steps import VALIDATION
from tests.helpers.policies import inverting_dark
from tests.helpers.training import assert_resumes, built, settings, splits, trained


def by_image(out: Path, **changes: Any) -> TrainConfig:
    return settings(out, augment=AugmentConfig(conditional_on="image", padding=2, cutout=4), **changes)


@pytest.mark.parametrize("estimator", [Influence(), Relaxed()])
def test_shared_part_and_outputs_learn_and_the_hidden_layer_stays(estimator: Any) -> None:
    policy = ImagePolicy()
    policy.standardise(TRAIN[0])
    before = {name: value.clone() for name, value in policy.state_dict().items() if isinstance(value, Tensor)}
    step = build(policy, estimator=estimator).step(TRAIN, VALIDATION)
    assert step is not None
    assert step.applied
    after = policy.state_dict()
    learned = {name for name, _ in policy.named_parameters()}
    kinds = ("selection", "application", "magnitude")
    assert learned == {f"{kind}_{part}" for kind in kinds for part in ("logits", "outputs")}
    for name, value in before.items():
        assert torch.equal(after[name], value) is (name not in learned), name


def test_traced_steps_have_the_gradient_of_others() -> None:
    def gradient(hvp: Any) -> tuple[Tensor, ...]:
        policy = ImagePolicy()
        policy.standardise(TRAIN[0])
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator))
        outer = build(policy)
        return outer.reference.with_hvp(hvp)(OuterRequest(), (*TRAIN, *VALIDATION)).grads

    for found, expected in zip(gradient(Traced()), gradient(None), strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6 * expected.abs().max().item())


def test_draws_of_one_image_are_of_what_it_shows() -> None:
    """Dark images are always inverted, light ones never, whichever the draw."""
    policy = inverting_dark()
    seen: list[Tensor] = []

    def transform(images: Tensor) -> Tensor:
        seen.append(images.detach().clone())
        return images

    dark = torch.tensor([True, False, False, True, False] * 2)
    images = torch.rand(10, 1, 8, 8) * 0.2 + torch.where(dark, 0.0, 0.8).reshape(-1, 1, 1, 1)
    outer = build(policy, draws=3, estimator=Influence(SameExample()), transform=transform, curvature_batch=7)
    outer.step((images, torch.arange(10) % 3), VALIDATION)
    repeated, inverted = images.repeat_interleave(3, 0), dark.repeat_interleave(3)
    expected = torch.where(inverted.reshape(-1, 1, 1, 1), 1 - repeated, repeated)
    batches = [batch for batch in seen if len(batch) in (30, 7)]
    assert {len(batch) for batch in batches} == {30, 7}
    assert any(torch.equal(batch, expected) for batch in batches)
    assert any(torch.equal(batch, expected[:7]) for batch in batches)


def test_a_run_leaves_the_network_behind(tmp_path: Path) -> None:
    run = built(by_image(tmp_path / "run"))
    assert isinstance(run.policy, ImagePolicy)
    images, _ = splits().train.load(list(range(len(splits().train))))
    crops = run.base_augmentation.before(images, run.base_augmentation.sample(images, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(run.policy.get_buffer("centre"), features(crops).mean(0))
    assert run.policy.get_buffer("standardised")
    result = Trainer(run).fit()
    spec = PolicySpec.load(tmp_path / "run" / "policy.json")
    assert spec == run.policy.spec()
    assert spec.network is not None
    assert any(value for stage in spec.network.stages for outputs in stage for value in outputs.selection)
    last = json.loads((tmp_path / "run" / "trajectory.jsonl").read_text().splitlines()[-1])
    torch.testing.assert_close(torch.tensor(last["selection"]), run.policy.selection.detach())
    assert result.policy.keys() == {operation.name for operation in spec.operations}
    named = dataclasses.replace(by_image(tmp_path), out=None)
    assert run_directory(named, "generated", "small-cnn").name == "generated-small-cnn-learned-image-0"
    # And is a method like any other.
    again = settings(tmp_path / "again", str(tmp_path / "run" / "policy.json"), epochs=1)
    trained(again)
    assert PolicySpec.load(tmp_path / "again" / "policy.json") == spec


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    outer = OuterConfig(every=2, warmup=0, batch_size=16)
    assert_resumes(tmp_path, lambda out: by_image(out, outer=outer))
