"""Trained weights from a file or another model."""

import copy
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from madao.errors import ModelError, UserError, first_line
from madao.files import load_torch
from madao.models.layers import first_convolution, heads, spread_channels


def load_file(model: nn.Module, path: str) -> None:
    """Load a state dict from a file of `torch.save`, bare or under the key "model" or "state_dict". See `load`.

    Code in the file is not run.
    """
    if not Path(path).is_file():
        raise ModelError(f"there is no weights file {path}; set `model.pretrained` to a state dict saved by torch.save")
    try:
        content = load_torch(Path(path))
    except UserError as error:
        raise ModelError(f"{error}; save model.state_dict() with torch.save") from None
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise ModelError(f"{path} holds no state dict of names and tensors; save model.state_dict() with torch.save")
    load(model, content, path)


def load(model: nn.Module, state: dict[str, Any], source: str) -> None:
    """Load a state dict from a `source` that may be for other classes and channels.

    The model keeps its own head if the shapes differ. A first convolution for another number of channels is adapted.
    All other shapes have to match.
    """
    own = model.state_dict()
    state = copy.copy(state)  # unlike a new dict, a copy keeps the version numbers of layers
    other_head: set[str] = set()
    for head in heads(model):
        keys = [key for key in own if key.startswith(f"{head}.")]
        if any(key in state and state[key].shape != own[key].shape for key in keys):
            other_head.update(key for key in keys if state.pop(key, None) is not None)
    stem = f"{first_convolution(model)[0]}.weight"
    if stem in state and state[stem].dim() == 4:
        channels = own[stem].shape[1]
        state[stem] = state[stem] if state[stem].shape[1] == channels else spread_channels(state[stem], channels)

    misfits = [key for key in state if key in own and state[key].shape != own[key].shape]
    if misfits:
        shapes = f"{list(state[misfits[0]].shape)}, the model's {list(own[misfits[0]].shape)}"
        raise ModelError(f"{source} is for another model: {_some(misfits)} has the shape {shapes}; {_REMEDY}")
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{source} cannot be loaded: {first_line(error)}; {_REMEDY}") from error
    for keys, trouble in ((unexpected, "has the unexpected"), (missing, "lacks")):
        keys = [key for key in keys if key not in other_head]
        if keys:
            raise ModelError(f"{source} is for another model: it {trouble} {_some(keys)}; {_REMEDY}")


_REMEDY = "build with the name, stem and image size that the weights were trained with"


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (f" (and {len(keys) - 3} more)" if len(keys) > 3 else "")
