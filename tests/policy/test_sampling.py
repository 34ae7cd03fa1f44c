"""The random numbers themselves."""

import math

import torch
from scipy import stats

from madao.policy import sampling

COUNT = 100_000


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_noise_has_its_distribution() -> None:
    gumbel = sampling.gumbel_noise((COUNT,), generator(), torch.float64)
    assert stats.kstest(gumbel.numpy(), "gumbel_r").pvalue > 1e-3
    logistic = sampling.logistic_noise((COUNT,), generator(), torch.float64)
    assert stats.kstest(logistic.numpy(), "logistic").pvalue > 1e-3
    signs = sampling.fair_signs((COUNT,), generator())
    assert stats.binomtest(int((signs == 1).sum()), COUNT).pvalue > 1e-3


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[100.0, -100.0, 0.0]], requires_grad=True)
    noise = sampling.gumbel_noise((1000, 3), generator())
    choice = sampling.categorical(logits, noise)
    assert (choice == 0).all()
    weight = sampling.relaxed_weight(logits.expand(1000, 3), noise, choice, temperature=0.01)
    assert (weight == 1).all()
    assert torch.isfinite(torch.autograd.grad(weight.sum(), logits)[0]).all()


def test_a_tie_is_not_applied() -> None:
    zero = torch.zeros(1)
    assert not sampling.bernoulli(zero, zero).any()
    assert sampling.relaxed_gate(zero, zero, 0.1) == 0


def test_relaxed_gate_derivative() -> None:
    logit = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([-0.25], dtype=torch.float64)
    gate = sampling.relaxed_gate(logit, noise, temperature=0.5)
    assert gate.item() == 1
    soft = 1 / (1 + math.exp(-0.05 / 0.5))
    (gradient,) = torch.autograd.grad(gate, logit)
    assert math.isclose(gradient.item(), soft * (1 - soft) / 0.5, rel_tol=1e-12)
