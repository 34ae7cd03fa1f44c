"""Charts as data: the page and the files of figures draw them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

COLOURS = 7
"""Number of colours, which readers of every kind of colour vision can tell apart. More series differ in dashes."""


@dataclasses.dataclass(frozen=True)
class Series:
    """One line.

    Attributes:
        name: Its name in the legend. Series of the same name are shown and hidden together.
        x: Horizontal positions.
        y: Values; None where one is unknown.
        style: Its colour (`style % COLOURS`) and dash (`style // COLOURS`).
        low: The lower edge of a band around the line, if any.
        high: The upper edge.
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
        series: The lines.
        title: The title above them.
        y_range: The ends of the vertical axis, by default those of the data.
    """

    series: Sequence[Series]
    title: str = ""
    y_range: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels that share a legend, labels and a caption.

    Attributes:
        key: The name of its files and of its place in the page.
        title: The heading.
        caption: The text below, which explains how to read it.
        panels: The axes.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        percent: Whether values are fractions that are shown in percent.
        logarithmic: Whether the vertical axis is logarithmic.
        shaded: The ends of a grey interval of the horizontal axis, and its name.
        ticks: Names of the horizontal positions 0, 1, …, instead of numbers.
        small: Whether its panels are small.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the chart for JSON, with as many digits as a reader can see."""
        content = dataclasses.asdict(self)
        for panel in content["panels"]:
            for series in panel["series"]:
                for axis in ("y", "low", "high"):
                    if series[axis] is not None:
                        series[axis] = [_short(value) for value in series[axis]]
        return content


def thinned(x: Sequence[float], y: Sequence[float | None], most: int = 600) -> tuple[list[float], list[float | None]]:
    """Reduce a line to at most `most` points, by means over intervals of equal length."""
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
    """Return a style for an operation. Neighbours, ShearX and ShearY say, share a colour and differ in dashes."""
    return index // 2 % COLOURS + COLOURS * (index % 2 + 2 * (index // (2 * COLOURS)))


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
