"""Draws from discrete distributions with a hard value and a relaxed derivative.

Noise is an argument, so all functions that take it are pure. The value is an exact draw from the distribution; the
temperature only affects the derivative.
"""

import torch
from torch import Tensor


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard Gumbel noise, −log E with E an exponential draw, on the generator's device."""
    exponential = torch.empty(shape, dtype=dtype, device=generator.device).exponential_(generator=generator)
    # A draw of exactly zero would give infinite noise.
    return -exponential.clamp_(min=torch.finfo(dtype).tiny).log()


def logistic_noise(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard logistic noise, log U − log(1 − U): the difference of two Gumbel draws."""
    return gumbel_noise(shape, generator, dtype) - gumbel_noise(shape, generator, dtype)


def fair_signs(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw +1 or −1 with equal probability."""
    coins = torch.randint(0, 2, shape, generator=generator, device=generator.device)
    return coins.to(dtype).mul_(2).sub_(1)


def jittered(magnitude: Tensor, magnitude_jitter: float, generator: torch.Generator) -> Tensor:
    """Return μ (1 − v U), U uniform: every magnitude from (1 − v) μ to μ is equally likely, with a gradient to μ.

    Without jitter (v = 0) nothing is drawn, so the generator does not advance.
    """
    if not magnitude_jitter:
        return magnitude
    uniform = torch.rand(magnitude.shape, generator=generator, dtype=magnitude.dtype, device=magnitude.device)
    return magnitude * (1 - magnitude_jitter * uniform)


def categorical(logits: Tensor, noise: Tensor) -> Tensor:
    """Return the index i = argmax(logits + Gumbel noise), a draw from softmax(logits). `[..., n]` → `[...]`."""
    return (logits + noise).argmax(-1)


def relaxed_weight(logits: Tensor, noise: Tensor, choice: Tensor, temperature: float) -> Tensor:
    """Return u_i / stop_gradient(u_i) for the chosen i, u = softmax((logits + Gumbel noise) / temperature).

    The value is 1 and the derivative that of log u_i: (1[i = j] − u_j) / temperature in logit j. See equations 10 to
    12 of the paper. `[..., n]` and `[...]` → `[...]`.
    """
    log_weight = ((logits + noise) / temperature).log_softmax(-1)
    chosen = log_weight.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
    return (chosen - chosen.detach()).exp()


def bernoulli(logits: Tensor, noise: Tensor) -> Tensor:
    """Return True where logits + logistic noise > 0, which has probability sigmoid(logits)."""
    return logits + noise > 0


def relaxed_gate(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """Return the Bernoulli draw as 0 or 1, with the derivative of sigmoid((logits + logistic noise) / temperature)."""
    soft = ((logits + noise) / temperature).sigmoid()
    return (logits + noise > 0).to(soft.dtype) + (soft - soft.detach())
