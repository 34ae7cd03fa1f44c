"""Draws from discrete distributions whose value is hard and whose derivative is relaxed.

Noise is an argument, so that every function here is pure. The hard outcome is an exact draw from the
distribution; the temperature touches the derivative alone.
"""

import torch
from torch import Tensor


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard Gumbel noise, −log E with E an exponential draw, on the generator's device."""
    exponential = torch.empty(shape, dtype=dtype, device=generator.device).exponential_(generator=generator)
    # A draw of exactly zero would be infinite noise.
    return -exponential.clamp_(min=torch.finfo(dtype).tiny).log()


def logistic_noise(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard logistic noise, log U − log(1 − U): the difference of two Gumbel draws."""
    return gumbel_noise(shape, generator, dtype) - gumbel_noise(shape, generator, dtype)


def fair_signs(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """+1 or −1 by a fair coin."""
    coins = torch.randint(0, 2, shape, generator=generator, device=generator.device)
    return coins.to(dtype).mul_(2).sub_(1)


def varied(magnitude: Tensor, magnitude_jitter: float, generator: torch.Generator) -> Tensor:
    """μ (1 − v U), U uniform: every strength from (1 − v) μ to μ is equally likely, and carries μ's derivative.

    Without variation nothing is drawn.
    """
    if not magnitude_jitter:
        return magnitude
    uniform = torch.rand(magnitude.shape, generator=generator, dtype=magnitude.dtype, device=magnitude.device)
    return magnitude * (1 - magnitude_jitter * uniform)


def categorical(logits: Tensor, noise: Tensor) -> Tensor:
    """Index i = argmax(logits + Gumbel noise), a draw from softmax(logits). `[..., n]` → `[...]`."""
    return (logits + noise).argmax(-1)


def relaxed_weight(logits: Tensor, noise: Tensor, choice: Tensor, temperature: float) -> Tensor:
    """u_i / stop_gradient(u_i) for the chosen i, u = softmax((logits + Gumbel noise) / temperature).

    Its value is 1. Its derivative is that of log u_i: (1[i = j] − u_j) / temperature in logit j. Equations
    10 to 12 of the paper. `[..., n]` and `[...]` → `[...]`.
    """
    log_weight = ((logits + noise) / temperature).log_softmax(-1)
    chosen = log_weight.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
    return (chosen - chosen.detach()).exp()


def bernoulli(logits: Tensor, noise: Tensor) -> Tensor:
    """True where logits + logistic noise > 0, which has probability sigmoid(logits)."""
    return logits + noise > 0


def relaxed_gate(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """The Bernoulli draw as 0 or 1 with the derivative of sigmoid((logits + logistic noise) / temperature)."""
    soft = ((logits + noise) / temperature).sigmoid()
    return (logits + noise > 0).to(soft.dtype) + (soft - soft.detach())
