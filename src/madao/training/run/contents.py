"""Checks of the contents of checkpoints: whole files may still be of another program, model or version."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from madao.errors import DamagedFileError, first_line
from madao.text import printable

_NUMBER = (int, float)
_HYPERPARAMETERS = {"params", "lr", "momentum", "dampening", "weight_decay", "alpha", "betas", "eps"}
"""Of what an optimizer needs, all that torch does not add to the states of older versions."""
_SCALARS = {"step", "noise"}
"""Of the state of a parameter, what is a number: all else has the shape of the parameter."""
_KINDS: dict[type | tuple[type, ...], str] = {
    dict: "a dict",
    list: "a list",
    int: "a whole number",
    _NUMBER: "a number",
}


def check_weights(content: Any, path: Path) -> dict[str, Any]:
    """Return the content of a file if it has the fields that evaluation needs.

    Args:
        content: The content of the file, from `load_torch`.
        path: The file, for error messages.

    Raises:
        DamagedFileError: A field is missing or of another type.
    """
    if not isinstance(content, dict):
        raise DamagedFileError(f"{path} holds a {type(content).__name__}, expected a checkpoint; {_REMEDY}")
    _check_field(content, "model", dict, path)
    _check_field(content, "classes", list, path)
    _check_field(content, "epoch", int, path)
    if content.get("validation_error") is not None:
        _check_field(content, "validation_error", _NUMBER, path)
    return content


def check_state(content: Any, path: Path, epochs: int, steps: int) -> dict[str, Any]:
    """Return the content of a file if it has the fields of a checkpoint to resume from.

    Args:
        content: The content of the file, from `load_torch`.
        path: The file, for error messages.
        epochs: The number of epochs of the run.
        steps: The number of its steps.

    Raises:
        DamagedFileError: A field is missing, of another type, or out of range.
    """
    state = check_weights(content, path)
    _check_field(state, "step", int, path)
    for name in ("data", "random"):
        _check_field(state, name, dict, path)
    for name, most in (("epoch", epochs), ("step", steps)):
        if not 0 <= state[name] <= most:
            raise DamagedFileError(f"{path}: `{name}` is {state[name]}, expected 0 to {most}; {_REMEDY}")
    best = state.get("best")
    if best is not None and not (
        isinstance(best, tuple | list) and len(best) == 2 and all(isinstance(value, _NUMBER) for value in best)
    ):
        raise DamagedFileError(f"{path}: `best` is {printable(best, 60)}, expected an error and its epoch; {_REMEDY}")
    return state


def check_structure(saved: Any, own: Any, where: str, path: Path) -> None:
    """Raise unless tensors, dicts and numbers that a run has too are of its shapes and types.

    Values that the run does not have yet, and those that an older version did not save, are not compared.

    Args:
        saved: A part of a checkpoint.
        own: The same part of the run that resumes.
        where: The name of the part.
        path: The file, for error messages.
    """
    if isinstance(own, dict) and isinstance(saved, dict):
        for name in own.keys() & saved.keys():
            check_structure(saved[name], own[name], f"{where}.{name}", path)
    elif isinstance(own, list | tuple) and isinstance(saved, list | tuple):
        for index, (before, now) in enumerate(zip(saved, own, strict=False)):
            check_structure(before, now, f"{where}.{index}", path)
    elif own is not None and _kind(saved) != _kind(own):
        raise DamagedFileError(f"{path}: `{where}` is {_kind(saved)}, this run's is {_kind(own)}; {_REMEDY}")


def check_optimizer(state: dict[str, Any], optimizer: Optimizer, where: str, path: Path) -> None:
    """Raise unless an optimizer can continue with a saved state. It would only fail at its next step.

    Args:
        state: The saved state.
        optimizer: The optimizer of the run.
        where: Its name.
        path: The file, for error messages.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, kept in state["state"].items():
        for name, value in kept.items():
            own = 0 if name in _SCALARS else parameters[index]
            if value is not None:
                check_structure(value, own, f"{where}.state.{index}.{name}", path)
    for group, own in zip(state["param_groups"], optimizer.param_groups, strict=False):
        for name in _HYPERPARAMETERS & own.keys():
            if name not in group:
                raise DamagedFileError(f"{path}: `{where}` has no `{name}`; {_REMEDY}")


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Raise `DamagedFileError`, in one line, if a checkpoint cannot be loaded into the parts of a run."""
    try:
        yield
    except DamagedFileError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = printable(first_line(error), 200)
        raise DamagedFileError(f"{path} does not fit this run ({type(error).__name__}: {reason}); {_REMEDY}") from None


_REMEDY = "resume with the version that wrote it, or begin a new run in another `out`"


def _check_field(content: dict[str, Any], name: str, kind: type | tuple[type, ...], path: Path) -> None:
    if name not in content:
        raise DamagedFileError(f"{path} has no `{name}`; {_REMEDY}")
    value = content[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        found = type(value).__name__
        raise DamagedFileError(f"{path}: `{name}` is of the type {found}, expected {_KINDS[kind]}; {_REMEDY}")


def _kind(value: Any) -> str:
    """Return the shape of a tensor, or the type of another value; a number is also a tensor of one."""
    if isinstance(value, Tensor) and value.dim():
        return f"a tensor {list(value.shape)}"
    return "a number" if isinstance(value, int | float | Tensor) else f"a {type(value).__name__}"
