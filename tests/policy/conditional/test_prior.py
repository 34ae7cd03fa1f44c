"""The prior on the deviations of classes and images."""

import pytest
import torch

from madao import ClassPolicy, ImagePolicy, Policy
from tests.helpers.policies import scattered, seeded


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("shrinkage", [0.3, 0.0])
@pytest.mark.parametrize("kind", [ClassPolicy, ImagePolicy])
def test_it_adds_the_gradient_of_its_quadratic_at_every_scale_of_the_loss(
    kind: type[Policy], shrinkage: float, scale: float
) -> None:
    policy = scattered(ClassPolicy(3, shrinkage=shrinkage) if kind is ClassPolicy else ImagePolicy(shrinkage=shrinkage))
    gradients = {
        name: scale * torch.randn(p.shape, generator=seeded(len(name))) for name, p in policy.named_parameters()
    }
    found = policy.with_prior(gradients)
    assert list(found) == list(gradients)
    for name, parameter in policy.named_parameters():
        if name.endswith("_logits"):  # the shared part has none
            assert torch.equal(found[name], gradients[name])
            continue
        typical = gradients[name].square().mean().sqrt()
        (pull,) = torch.autograd.grad(0.5 * shrinkage * typical * parameter.square().sum(), parameter)
        torch.testing.assert_close(found[name], gradients[name] + pull, rtol=1e-5, atol=1e-6 * scale)
        assert (pull.abs().max() > 0.1 * scale) == (shrinkage > 0)
