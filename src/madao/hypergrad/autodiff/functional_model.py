"""An `nn.Module` as a pure function of its parameters that has second derivatives."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from madao.hypergrad.autodiff.torch_compat import PROCESS_LOCK, Replaced, uncompiled
from madao.hypergrad.pytree import HALF, at_least_single

Mode = Literal["train", "eval", "keep"]


class FunctionalModel:
    """A pure function `(params, *inputs)` that returns the output of a model and does not change the model.

    - Running statistics are not updated. BatchNorm uses the batch's statistics in mode `"train"`, the running ones in
      `"eval"`.
    - Dropout and other random functions of torch repeat at every call, by `seed`. The random state is restored.
    - Attention is computed step by step, since the fused kernels have no second derivative.
    - Compiled and data-parallel models are replaced by the module inside, and compiled functions run uncompiled.
    - Parameters that do not require a gradient are constants. Tied parameters are one parameter.

    Calls from several threads run one after the other.

    Args:
        model: Any module.
        mode: `"train"`, `"eval"`, or `"keep"` to leave each submodule in its mode.
        seed: Seed of the random functions.
        autocast: Half-precision dtype of the forward pass, if any.

    Example:
        >>> pure = FunctionalModel(model)
        >>> outputs = pure(pure.params, images)
    """

    def __init__(
        self, model: nn.Module, mode: Mode = "train", seed: int = 0, autocast: torch.dtype | None = None
    ) -> None:
        if mode not in ("train", "eval", "keep"):
            raise ValueError(f"mode must be 'train', 'eval' or 'keep', got {mode!r}")
        self.model = unwrap(model)
        self.mode = mode
        self.seed = seed
        self.autocast = autocast

    @property
    def params(self) -> dict[str, Tensor]:
        """The parameters that require a gradient, by name, as `Problem.params` takes them."""
        params: dict[str, Tensor] = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not params:
            raise ValueError(
                "no parameter of the model requires a gradient, so there is no inner problem; unfreeze some"
            )
        return params

    def __call__(self, params: dict[str, Tensor], *inputs: Any, **keywords: Any) -> Any:
        """Return the model's output."""
        device = next(iter(params.values())).device
        # Copies, since modules write to their buffers, as BatchNorm does to its statistics.
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        with contextlib.ExitStack() as stack:
            stack.enter_context(PROCESS_LOCK)
            stack.enter_context(in_mode(self.model, self.mode))
            stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # for calls that no mode sees, as in scripted modules
            stack.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code has no second derivative
            stack.enter_context(Replaced(_TWICE_DIFFERENTIABLE))
            if self.autocast is not None:
                # The cache of converted weights loses their forward-mode derivative.
                stack.enter_context(torch.autocast(device.type, dtype=self.autocast, cache_enabled=False))
            _seed(self.seed, device)
            return torch.func.functional_call(self.model, {**params, **buffers}, inputs, keywords)


def _in_single_precision(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(input: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        if input.dtype not in HALF:
            return function(input, *arguments, **keywords)
        arguments = tuple(upcast(argument) for argument in arguments)
        keywords = {name: upcast(value) for name, value in keywords.items()}
        return function(input.float(), *arguments, **keywords).to(input.dtype)

    return run


def upcast(value: Any) -> Any:
    """Convert a tensor of half precision to float32. Return anything else unchanged."""
    return at_least_single(value) if isinstance(value, Tensor) else value


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of this device: `fork_rng` restores these two alone."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0:
        return input
    kept = torch.empty(input.shape, dtype=input.dtype, device=input.device).bernoulli_(1 - p)
    return input * kept / (1 - p) if p < 1 else input * kept


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute `torch.nn.functional.scaled_dot_product_attention` by its definition."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    blank = torch.zeros((), dtype=torch.bool, device=scores.device)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        blank = ~attn_mask.any(-1, keepdim=True)  # such rows attend to nothing and return zero
        scores = scores.masked_fill(~attn_mask, -torch.inf).masked_fill(blank, 0)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return _dropout(scores.softmax(-1).masked_fill(blank, 0), dropout_p) @ value


_NORMS = (F.batch_norm, F.group_norm, F.layer_norm)
_TWICE_DIFFERENTIABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attention,
    F.dropout: _dropout,
    **{function: _in_single_precision(function) for function in _NORMS},
}
"""The functions that replace those of torch which have no second derivative, or not the same one in every mode.

The fused kernels of attention have no second derivative. torch's dropout fills its mask in the order of the input's
memory, which forward mode may change. Its norms of half-precision inputs have forward derivatives of another dtype. The
fast paths of transformer layers are off in any case, since a mode is active.
"""


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside a compiled or data-parallel one."""
    while True:
        inside = uncompiled(model)
        if inside is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inside = model.module
        if inside is None:
            return model
        model = inside


@contextlib.contextmanager
def in_mode(model: nn.Module, mode: Mode) -> Iterator[None]:
    """Set the mode of a model, and restore the mode of every submodule at the end, also after an error."""
    training = [(module, module.training) for module in model.modules()]
    try:
        if mode != "keep":
            model.train(mode == "train")
        yield
    finally:
        for module, flag in training:
            module.training = flag
