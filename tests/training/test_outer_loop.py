"""The outer loop: the part of the policy that learns, the images of a step, and its weights."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.config.train_config import AugmentConfig, OuterConfig
from madao.outer.policy_optimizer import PolicyOptimizer
from madao.policy import Policy
from madao.training.trainer import Trainer
from tests.helpers.training import assert_resumes, built, settings, trained


@pytest.mark.parametrize("learn", ["selection", "strength"])
@pytest.mark.parametrize("conditional_on", ["none", "class", "image"])
def test_a_part_of_the_policy_alone_may_learn(tmp_path: Path, learn: Any, conditional_on: Any) -> None:
    outer = OuterConfig(every=2, warmup=0, batch_size=16, learn=learn)
    run = trained(settings(tmp_path, augment=AugmentConfig(conditional_on=conditional_on), outer=outer, epochs=2))
    assert run.policy is not None
    for name, parameter in run.policy.named_parameters():
        start = 0.0 if name.endswith(("_deviations", "_outputs")) or name.startswith("selection") else 0.5
        learns = name.startswith("selection") == (learn == "selection")
        assert (parameter != start).any() if learns else (parameter == start).all(), name


def test_a_pulled_policy_stays_near_its_start_and_resumes(tmp_path: Path) -> None:
    def far(pull: float) -> float:
        outer = OuterConfig(every=1, warmup=0, batch_size=16, lr=0.2, init_decay=pull)
        run = trained(settings(tmp_path / f"run-{pull}", outer=outer))
        assert isinstance(run.policy, Policy)
        return float(run.policy.selection_logits.detach().square().mean().sqrt())

    near, free = far(2.0), far(0.0)
    assert near < 0.3 < free, (near, free)
    outer = OuterConfig(every=2, warmup=0, batch_size=16, init_decay=2.0)
    assert_resumes(tmp_path, lambda out: settings(out, outer=outer))


@pytest.mark.parametrize(
    ("outer", "images"),
    [
        ({"train_batch_size": 256}, 64),
        ({"train_batch_size": 100}, 32),
        ({}, 32),
        ({"train_batch_size": 256, "pathwise_batch_size": 7}, 7),
        ({"train_batch_size": 256, "model_mode": "train"}, None),
        ({"train_batch_size": 256, "estimator": "relaxed"}, None),
    ],
)
def test_magnitudes_are_learned_from_a_quarter_of_the_images(
    tmp_path: Path, outer: dict[str, Any], images: int | None
) -> None:
    loop = built(settings(tmp_path, outer=OuterConfig(budget=0.0, **outer))).outer_loop
    assert loop is not None
    assert loop.outer.compute.pathwise_batch == images


@pytest.mark.parametrize(
    ("outer", "more", "images"),
    [
        ({}, {}, 32),
        ({"train_batch_size": 256, "batch_size": 64}, {}, 32),
        ({"train_batch_size": 256}, {"accumulate": 4}, 16),
        ({"train_batch_size": 512}, {"accumulate": 4}, 32),
        ({"batch_size": 1000}, {}, 63),
        ({"train_batch_size": 256, "microbatch": 100}, {}, 100),
        ({"train_batch_size": 256, "model_mode": "train"}, {}, None),
        ({"train_batch_size": 256, "solver": "gauss-newton"}, {}, None),
        ({"train_batch_size": 256, "solver": "neumann"}, {}, None),
        ({"train_batch_size": 256, "solver": "identity"}, {}, 32),
    ],
)
def test_outer_steps_pass_as_many_images_at_once_as_training_does(
    tmp_path: Path, outer: dict[str, Any], more: dict[str, Any], images: int | None
) -> None:
    loop = built(settings(tmp_path, outer=OuterConfig(budget=0.0, **outer), **more)).outer_loop
    assert loop is not None
    assert loop.outer.compute.microbatch == images


def test_outer_steps_are_taken_at_averaged_weights(tmp_path: Path) -> None:
    run = built(settings(tmp_path, outer=OuterConfig(every=2, warmup=0, batch_size=16, average=0.75)))
    assert run.outer_loop is not None
    outer, expected, seen = run.outer_loop.outer, list[Tensor](), list[Tensor]()
    estimate = outer._estimate

    def spied(*arguments: Any) -> Any:
        here = torch.cat([p.detach().flatten() for p in run.network.parameters()])
        expected.append(here if not expected else 0.75 * expected[-1] + 0.25 * here)
        seen.append(torch.cat([p.detach().flatten() for p in outer.model.parameters()]))
        return estimate(*arguments)

    outer._estimate = spied
    Trainer(run).fit()
    assert len(seen) == 4
    torch.testing.assert_close(torch.stack(seen), torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(seen[-1], torch.cat([p.detach().flatten() for p in run.network.parameters()]))


def test_the_average_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    outer = OuterConfig(every=2, warmup=0, batch_size=16, average=0.75)
    assert_resumes(tmp_path, lambda out: settings(out, outer=outer))


def random_signs(out: Path, seed: int = 0, **augment: Any) -> PolicyOptimizer:
    outer = OuterConfig(budget=0.0, every=2, warmup=0, batch_size=16, sign="random", lr=0.05)
    config = settings(out, outer=outer, seed=seed)
    config = dataclasses.replace(config, augment=dataclasses.replace(config.augment, **augment))
    loop = built(config).outer_loop
    assert loop is not None
    return loop.outer


def test_a_random_sign_is_a_fair_coin_that_a_resumed_run_throws_alike(tmp_path: Path) -> None:
    def signs(optimizer: PolicyOptimizer, until: int) -> list[float]:
        logits, found = optimizer.policy.selection_logits, []
        while optimizer.updates < until:
            before = logits.detach().clone()
            optimizer._apply([torch.ones_like(parameter) for parameter in optimizer._learned.values()], 1.0)
            found.append(float((before - logits.detach()).sign().mean()))
        return found

    whole = signs(random_signs(tmp_path), 200)
    assert {*whole} == {-1.0, 1.0}
    assert abs(sum(whole)) < 4 * 200**0.5
    begun, resumed = random_signs(tmp_path), random_signs(tmp_path)
    first = signs(begun, 80)
    resumed.load_state_dict(begun.state_dict())
    assert first + signs(resumed, 200) == whole
    assert signs(random_signs(tmp_path, seed=1), 200) != whole


def test_a_random_sign_leaves_the_prior_of_classes_alone(tmp_path: Path) -> None:
    """The gradient climbs or descends; λ r δ always pulls deviations to 0."""
    optimizer = random_signs(tmp_path, conditional_on="class", shrinkage=5.0)
    generator = torch.Generator().manual_seed(3)
    names = [name for name in optimizer._learned if name.endswith("_deviations")]
    with torch.no_grad():
        for name in names:
            deviations = optimizer.policy.get_parameter(name)
            deviations.copy_(torch.randn(deviations.shape, generator=generator))
    start = {name: float(optimizer.policy.get_parameter(name).detach().abs().mean()) for name in names}
    signs = []
    for update in range(60):
        signs.append(optimizer.sign(update))
        given = [torch.randn(parameter.shape, generator=generator) for parameter in optimizer._learned.values()]
        expected = {}
        for name, gradient in zip(optimizer._learned, given, strict=True):
            pull = 5.0 * gradient.square().mean().sqrt() * optimizer.policy.get_parameter(name).detach()
            expected[name] = signs[-1] * gradient + (pull if name in names else 0.0)
        found: dict[str, Tensor] = {}

        def spy(*_: Any, found: dict[str, Tensor] = found) -> None:
            for name, parameter in optimizer._learned.items():
                assert parameter.grad is not None
                found[name] = parameter.grad.clone()

        hook = optimizer.optimizer.register_step_pre_hook(spy)
        optimizer._apply(given, 1.0)
        hook.remove()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient)
    assert {*signs} == {-1.0, 1.0}
    for name in names:
        assert float(optimizer.policy.get_parameter(name).detach().abs().mean()) < 0.3 * start[name]
