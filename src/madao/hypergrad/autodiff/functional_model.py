"""An `nn.Module` as a pure function of its parameters that has second derivatives."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from madao.hypergrad.autodiff.torch_compat import PROCESS_LOCK, Replaced, uncompiled
from madao.hypergrad.autodiff.twice_differentiable import TWICE_DIFFERENTIABLE

Mode = Literal["train", "eval", "keep"]

_WITHOUT_AUTOCAST = contextvars.ContextVar("without_autocast", default=False)


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
            stack.enter_context(Replaced(TWICE_DIFFERENTIABLE))
            if _WITHOUT_AUTOCAST.get():
                stack.enter_context(torch.autocast(device.type, enabled=False))
            elif self.autocast is not None:
                # The cache of converted weights loses their forward-mode derivative.
                stack.enter_context(torch.autocast(device.type, dtype=self.autocast, cache_enabled=False))
            _seed(self.seed, device)
            return torch.func.functional_call(self.model, {**params, **buffers}, inputs, keywords)


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Let every `FunctionalModel` compute in the precision of its parameters."""
    token = _WITHOUT_AUTOCAST.set(True)
    try:
        yield
    finally:
        _WITHOUT_AUTOCAST.reset(token)


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of this device: `fork_rng` restores these two alone."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)


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
