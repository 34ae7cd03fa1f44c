"""A chart as data: what the page draws, and what the files of figures are drawn from."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

COLOURS = 7
"""Colours that readers of every kind of colour vision can tell apart; dashes tell what shares one."""


@dataclasses.dataclass(frozen=True)
class Series:
    """One line.

    Attributes:
        name: What the legend says. Series of the same name are shown and hidden together.
        x: Where.
        y: How much; None where it is not known.
        style: Which colour (`style % COLOURS`) and which dash (`style // COLOURS`).
        low: Lower edge of a band around it, if any.
        high: Upper edge.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    style: int = 0
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


@dataclasses.dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        series: Its lines.
        title: Above it.
        y_range: Ends of the vertical axis. By default those of the data.
    """

    series: Sequence[Series]
    title: str = ""
    y_range: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels that share legend, labels and caption.

    Attributes:
        key: Names its files and its place in the page.
        title: What it shows.
        caption: How to read it.
        panels: The axes.
        x_label: Of the horizontal axis.
        y_label: Of the vertical axis.
        percent: Whether values are parts of 1 that are shown in percent.
        logarithmic: Whether the vertical axis is.
        shaded: A stretch of the horizontal axis that is grey, and what it is.
        ticks: Names of the horizontal places 0, 1, …, where they are no numbers.
        small: Whether its panels are small ones.
    """

    key: str
    title: str
    caption: str
    panels: Sequence[Panel]
    x_label: str = "epoch"
    y_label: str = ""
    percent: bool = False
    logarithmic: bool = False
    shaded: tuple[float, float, str] | None = None
    ticks: Sequence[str] = ()
    small: bool = False

    def plain(self) -> dict[str, Any]:
        """For JSON, with as many digits as a reader can see."""
        content = dataclasses.asdict(self)
        for panel in content["panels"]:
            for series in panel["series"]:
                for axis in ("y", "low", "high"):
                    if series[axis] is not None:
                        series[axis] = [_short(value) for value in series[axis]]
        return content


def thinned(x: Sequence[float], y: Sequence[float | None], most: int = 600) -> tuple[list[float], list[float | None]]:
    """At most so many points: means over stretches of equal length."""
    size = -(-len(x) // most)
    if size <= 1:
        return list(x), list(y)
    places: list[float] = []
    values: list[float | None] = []
    for start in range(0, len(x), size):
        stretch = x[start : start + size]
        known = [value for value in y[start : start + size] if value is not None]
        places.append(sum(stretch) / len(stretch))
        values.append(sum(known) / len(known) if known else None)
    return places, values


def operation_style(index: int) -> int:
    """Neighbours in the table, ShearX and ShearY say, share a colour and differ in their dashes."""
    return index // 2 % COLOURS + COLOURS * (index % 2 + 2 * (index // (2 * COLOURS)))


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
