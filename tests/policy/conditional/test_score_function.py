"""The score-function estimator of conditional policies against the enumerated expectation."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from madao import ClassPolicy, Draw, ImagePolicy, Policy
from madao.hypergrad import Identity, Influence, NoBaseline, Problem, hypergradient
from madao.policy.conditional.features import features
from tests.helpers.policies import logits_of, scattered, seeded

IMAGES = torch.rand(2, 1, 3, 3, generator=seeded(4), dtype=torch.float64)
THETA = torch.randn(9, generator=seeded(5), dtype=torch.float64)


def outcomes() -> list[Draw]:
    """All draws of one stage of two operations without a magnitude, for two images."""
    each = list(itertools.product((0, 1), (False, True)))
    found = []
    for first, second in itertools.product(each, each):
        choice, applied = zip(first, second, strict=True)
        strengths = torch.zeros(1, 2, dtype=torch.float64)
        found.append(Draw(torch.tensor([choice]), torch.tensor([applied]), strengths, strengths + 1))
    return found


def by_class() -> tuple[Policy, Tensor]:
    return ClassPolicy(2, 1, operations=["Invert", "Equalize"]).double(), torch.tensor([1, 0])


def by_image() -> tuple[Policy, Tensor]:
    policy = ImagePolicy(1, 3, operations=["Invert", "Equalize"]).double()
    policy.standardise(IMAGES)
    return policy, features(IMAGES)


@pytest.mark.parametrize("build", [by_class, by_image])
def test_the_mean_over_every_outcome_is_the_gradient_of_the_expectation(
    build: Callable[[], tuple[Policy, Tensor]],
) -> None:
    """E[⟨q, ∇θ ℓ⟩] differentiated, with logits computed without the policy's functions."""
    policy, condition = build()
    scattered(policy, 1.0)

    def losses(params: Tensor, inputs: Tensor) -> Tensor:
        return (inputs.flatten(1) @ params).sin()

    def outer(params: Tensor, _: Tensor) -> Tensor:
        return params.cos().sum()

    hyper = tuple(parameter for parameter in policy.parameters() if parameter.numel())
    q = torch.func.grad(lambda t: outer(t, THETA))(THETA)
    expectation = torch.zeros((), dtype=torch.float64)
    estimated = [torch.zeros_like(parameter) for parameter in hyper]
    choices, gates = (logits_of(policy, kind, condition)[0] for kind in ("selection", "application"))
    for draw in outcomes():
        probability = torch.ones((), dtype=torch.float64)
        for image in range(2):
            index, applied = int(draw.choice[0, image]), bool(draw.applied[0, image])
            chance = choices[image].exp()[index] / choices[image].exp().sum()
            gate = 1 / (1 + (-gates[image, index]).exp())
            probability = probability * chance * (gate if applied else 1 - gate)
        inputs = policy.augment(IMAGES, draw)
        slopes = torch.func.jvp(lambda t, x=inputs: losses(t, x), (THETA,), (q,))[1]
        expectation = expectation - probability * slopes.mean()
        log_prob = policy.effect_log_prob(draw, condition)
        problem = Problem(THETA, hyper, losses, outer, inputs=inputs, log_prob=log_prob)
        result = hypergradient(problem, Identity(1.0), estimator=Influence(NoBaseline()))
        for total, part in zip(estimated, result.grads, strict=True):
            total += probability.detach() * part
    for found, exact in zip(estimated, torch.autograd.grad(expectation, hyper), strict=True):
        assert exact.abs().max() > 1e-5
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-12)
