"""Checks of the range of a setting."""

from madao.errors import UserError


def at_least(name: str, value: float | None, least: float) -> None:
    """Raise `UserError` if a setting is below its least value. None passes."""
    # Negated, so that NaN is refused as well.
    if value is not None and not value >= least:
        raise UserError(f"`{name}` must be at least {least}, got {value}")


def fraction(name: str, value: float) -> None:
    """Raise `UserError` unless 0 ≤ value < 1."""
    if not 0 <= value < 1:
        raise UserError(f"`{name}` must be at least 0 and below 1, got {value}")
