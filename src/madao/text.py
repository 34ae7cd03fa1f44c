"""Numbers of things, for people."""


def counted(number: int, thing: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"
