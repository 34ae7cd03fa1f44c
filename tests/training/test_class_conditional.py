"""A policy for each class, learned: in a plain loop, by the trainer, and from its own files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from madao import ClassPolicy, PolicySpec
from madao.config.train_config import AugmentConfig, OuterConfig, TrainConfig
from madao.errors import UserError
from madao.hypergrad import Influence, Relaxed, SameExample
from madao.training.run.directory import run_directory
from madao.training.trainer import Trainer
from tests.helpers.conditional import TRAIN, build
from tests.helpers.outer_steps import VALIDATION
from tests.helpers.training import assert_resumes, built, settings, splits, trained


@pytest.mark.parametrize("estimator", [Influence(), Relaxed()])
def test_classes_that_are_there_learn_and_the_others_wait(estimator: Any) -> None:
    policy = ClassPolicy(4)
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    step = build(policy, estimator=estimator).step(TRAIN, VALIDATION)
    assert step is not None
    assert step.applied
    for name, parameter in policy.named_parameters():
        moved = (parameter - before[name]).abs()
        assert moved.max() > 0, name
        if name.endswith("_deviations"):
            assert (moved.amax((0, 2)) > 0).tolist() == [True, True, True, False], name


def test_an_update_has_the_prior_in_it() -> None:
    def update(shrinkage: float, clip: float | None) -> dict[str, Tensor]:
        policy = ClassPolicy(4, shrinkage=shrinkage, seed=3)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator))
        before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
        build(policy, clip=clip).step(TRAIN, VALIDATION)
        return {name: before[name] - value.detach() for name, value in policy.named_parameters()}

    for clip in (None, 1e-4):
        free, shrunk = update(0.0, clip), update(0.5, clip)
        generator = torch.Generator().manual_seed(5)
        start = {name: torch.randn(p.shape, generator=generator) for name, p in ClassPolicy(4).named_parameters()}
        for name, gradient in free.items():
            pull = 0.5 * gradient.square().mean().sqrt() * start[name] if name.endswith("_deviations") else 0.0
            torch.testing.assert_close(shrunk[name], gradient + pull, rtol=1e-3, atol=1e-6)


def test_draws_of_one_image_are_of_its_class() -> None:
    """Of two classes, one that never applies anything and one that always inverts, whichever the draw."""
    policy = ClassPolicy(2, 1, operations=["Invert", "Equalize"])
    with torch.no_grad():
        policy.selection_logits[:, 0] = 50
        policy.get_parameter("application_deviations")[:, 0] = -50
        policy.get_parameter("application_deviations")[:, 1] = 50
    seen: list[Tensor] = []

    def transform(images: Tensor) -> Tensor:
        seen.append(images.detach().clone())
        return images

    images, labels = torch.rand(10, 1, 8, 8), torch.tensor([0, 1, 1, 0, 1] * 2)
    outer = build(policy, draws=3, estimator=Influence(SameExample()), transform=transform, curvature_batch=7)
    outer.step((images, labels), VALIDATION)
    repeated, of_one = images.repeat_interleave(3, 0), labels.repeat_interleave(3).bool()
    expected = torch.where(of_one.reshape(-1, 1, 1, 1), 1 - repeated, repeated)
    batches = [batch for batch in seen if len(batch) in (30, 7)]
    assert {len(batch) for batch in batches} == {30, 7}
    assert any(torch.equal(batch, expected) for batch in batches)
    assert any(torch.equal(batch, expected[:7]) for batch in batches)


def test_soft_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="soft labels"):
        build(ClassPolicy(3)).step((TRAIN[0], torch.rand(24, 3)), VALIDATION)


def by_class(out: Path, **changes: Any) -> TrainConfig:
    augment = AugmentConfig(conditional_on="class", padding=2, cutout=4)
    return settings(out, augment=augment, **changes)


def test_a_run_leaves_a_policy_for_each_class_behind(tmp_path: Path) -> None:
    run = built(by_class(tmp_path / "run"))
    result = Trainer(run).fit()
    assert isinstance(run.policy, ClassPolicy)
    spec = PolicySpec.load(tmp_path / "run" / "policy.json")
    assert spec.classes == ("a", "b", "c")
    assert len({spec.of_class(name) for name in spec.classes}) == 3
    assert spec == run.policy.spec()
    last = json.loads((tmp_path / "run" / "trajectory.jsonl").read_text().splitlines()[-1])
    shares = torch.tensor(last["class_selection"])
    torch.testing.assert_close(shares, run.policy.class_selection.detach().mean(0))
    torch.testing.assert_close(shares.sum(1), torch.ones(3))
    names = [operation.name for operation in spec.operations]
    for name, row in zip(spec.classes, shares.tolist(), strict=True):
        assert result.classes[name] == pytest.approx(dict(zip(names, row, strict=True)))
    assert result.policy["Rotate"] == pytest.approx(run.policy.selection[:, names.index("Rotate")].mean().item())
    assert json.loads((tmp_path / "run" / "result.json").read_text())["classes"] == result.classes
    named = dataclasses.replace(by_class(tmp_path), out=None)
    assert run_directory(named, "generated", "small-cnn").name == "generated-small-cnn-learned-class-0"


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    outer = OuterConfig(every=2, warmup=0, batch_size=16)
    assert_resumes(tmp_path, lambda out: by_class(out, outer=outer))


def test_a_file_with_classes_is_a_method_for_the_same_classes(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    ClassPolicy(["a", "b", "c"]).spec().save(path)
    trained(settings(tmp_path / "run", str(path), epochs=1))
    assert PolicySpec.load(tmp_path / "run" / "policy.json").classes == ("a", "b", "c")
    with pytest.raises(UserError, match="has a policy for each of the classes a, b, c …, and these images have a, b …"):
        built(settings(tmp_path / "other", str(path), epochs=1), splits(classes=2))


def test_the_condition_belongs_to_the_learned_policy() -> None:
    with pytest.raises(UserError, match=r"`augment\.conditional_on` needs `augment\.method=learned`, got uniform"):
        AugmentConfig(method="uniform", conditional_on="class")
    with pytest.raises(UserError, match=r"`augment.shrinkage` must be at least 0, got -1"):
        AugmentConfig(shrinkage=-1)
