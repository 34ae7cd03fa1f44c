"""Magnitudes that vary from draw to draw: μ (1 − v U)."""

from pathlib import Path

import pytest
import torch
from scipy import stats

from madao.policy import ClassPolicy, FrozenPolicy, ImagePolicy, Policy, PolicySpec, Uniform, load_policy, sampling
from madao.policy.base import AugmentationPolicy

IMAGES = torch.zeros(20_000, 1, 2, 2)


def test_strengths_are_spread_evenly() -> None:
    generator = torch.Generator().manual_seed(0)
    mu = torch.full((20_000,), 0.4, dtype=torch.float64)
    found = sampling.jittered(mu, 0.75, generator)
    assert stats.kstest(found.numpy(), "uniform", (0.1, 0.3)).pvalue > 1e-3
    state = generator.get_state()
    assert sampling.jittered(mu, 0.0, generator) is mu
    assert torch.equal(generator.get_state(), state)


def policies(magnitude_jitter: float) -> list[AugmentationPolicy]:
    learned = Policy(seed=1, magnitude_jitter=magnitude_jitter)
    return [learned, FrozenPolicy(learned.spec(), seed=1), Uniform(magnitude_jitter=magnitude_jitter, seed=1)]


@pytest.mark.parametrize("which", range(3))
def test_draws_vary_in_strength_and_in_nothing_else(which: int) -> None:
    plain, varied = (policies(magnitude_jitter)[which].sample(IMAGES) for magnitude_jitter in (0.0, 0.6))
    for name in ("choice", "applied", "sign"):
        assert torch.equal(getattr(plain, name), getattr(varied, name)), name
    has = plain.magnitude > 0
    part = (varied.magnitude / plain.magnitude)[has]
    assert stats.kstest(part[:20_000].double().numpy(), "uniform", (0.4, 0.6)).pvalue > 1e-3
    assert not varied.magnitude[~has].any()
    first, second = (varied.magnitude / plain.magnitude).nan_to_num()
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.03  # stages know nothing of each other


def test_the_derivative_is_that_of_the_strongest() -> None:
    policy = Policy(stages=1, operations=["Rotate"], magnitude_jitter=0.5, seed=2).double()
    draw = policy.sample(torch.zeros(5, 1, 2, 2), relaxed=True)
    mu = policy.magnitude.item()
    for found in draw.magnitude[0]:
        (gradient,) = torch.autograd.grad(found, policy.magnitude_logits, retain_graph=True)
        # μ = σ(x): ∂(μ w)/∂x = w μ (1 − μ)
        assert gradient.item() == pytest.approx(found.item() * (1 - mu), rel=1e-12)
    assert draw.magnitude.std() > 0.01


@pytest.mark.parametrize("kind", [Policy, ClassPolicy, ImagePolicy])
def test_the_jitter_is_in_the_file(kind: type[Policy], tmp_path: Path) -> None:
    policy = ClassPolicy(3, magnitude_jitter=0.25) if kind is ClassPolicy else kind(magnitude_jitter=0.25)
    spec, path = policy.spec(), tmp_path / "policy.json"
    spec.save(path)
    assert '"version": 4,\n  "fill": 0.0,\n  "variation": 0.25,' in path.read_text()
    assert PolicySpec.load(path) == spec
    assert kind.from_spec(spec).magnitude_jitter == spec.of_class(None).magnitude_jitter == 0.25
    loaded = load_policy(path)
    assert isinstance(loaded, FrozenPolicy)
    assert loaded.spec().magnitude_jitter == 0.25
    assert '"version": 4' not in Policy().spec().dumps()


def test_the_table_says_up_to() -> None:
    text = str(Policy(operations=["Rotate", "Invert"], magnitude_jitter=0.5).spec())
    assert "up to ±19°" in text
    assert "up to –" not in text
