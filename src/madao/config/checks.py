"""Checks of settings, in words that a user can act on."""

from madao.errors import UserError


def at_least(name: str, value: float | None, least: float) -> None:
    """Raise unless a setting is at least so much, where it is given."""
    # Negated, so that NaN is refused too.
    if value is not None and not value >= least:
        raise UserError(f"`{name}` must be at least {least}, got {value}")


def fraction(name: str, value: float) -> None:
    """Raise unless a setting is a part of 1, and not all of it."""
    if not 0 <= value < 1:
        raise UserError(f"`{name}` must be at least 0 and below 1, got {value}")
