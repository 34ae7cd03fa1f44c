"""Access to the images and targets of a batch: a tuple, list, mapping, or object with attributes."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor

Key = int | str


def entry(batch: Any, key: Key) -> Tensor:
    """Return the tensor at an index, a key or an attribute of a batch."""
    try:
        subscripted = isinstance(key, int) or isinstance(batch, Mapping)
        value = batch[key] if subscripted else getattr(batch, str(key))
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ValueError(f"the batch has no entry {key!r}: it is {_words(batch)}; {_REMEDY}") from None
    if not isinstance(value, Tensor):
        raise TypeError(f"entry {key!r} of the batch must be a tensor, got {type(value).__name__}; {_REMEDY}")
    return value


def replaced(batch: Any, key: Key, value: Tensor) -> Any:
    """Return a copy of the batch, of the same type, with another tensor at the key."""
    if isinstance(batch, tuple):
        place = key if isinstance(key, int) else type(batch)._fields.index(key)  # type: ignore[attr-defined]
        values = [value if i == place % len(batch) else old for i, old in enumerate(batch)]
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    changed = copy.copy(batch)
    if isinstance(key, int) or isinstance(batch, Mapping):
        changed[key] = value
    else:
        setattr(changed, key, value)
    return changed


_REMEDY = "give images=… and targets=… as the index, key or attribute of each"


def _words(batch: Any) -> str:
    kind = type(batch).__name__
    if isinstance(batch, Mapping):
        return f"a {kind} of {', '.join(map(repr, batch))}"
    return f"a {kind} of {len(batch)}" if isinstance(batch, tuple | list) else f"a {kind}"
