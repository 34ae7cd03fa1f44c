"""Magnitudes in real units, as text."""

from madao.ops import Operation


def strength(operation: Operation, value: float | None, magnitude_jitter: float = 0.0) -> str:
    """Return a magnitude as text, with ± if signed: "±21°", "factor 1 ± 0.62", "up to 6 bits" with a jitter."""
    if operation.range is None or value is None:
        return "–"
    return _strongest(operation, value) if not magnitude_jitter else f"up to {_strongest(operation, value)}"


def amount(operation: Operation, value: float) -> str:
    """Return one parameter with unit and sign as text: "−21°", "factor 1.62", "28 % of the width"."""
    minus = "−" if value < 0 else ""
    size = abs(value)
    match operation.unit:
        case "degrees":
            return f"{minus}{size:.0f}°" if size >= 10 else f"{minus}{size:.1f}°"
        case "bits":
            return f"{minus}{int(size + 0.5)} bits"
        case "factor" | "threshold" | "shear":
            return f"{operation.unit} {minus}{size:.3g}"
        case unit if unit.startswith("of the"):
            return f"{minus}{100 * size:.0f} % {unit}"
        case unit:
            return f"{minus}{size:.3g} {unit}".rstrip()


def _strongest(operation: Operation, value: float) -> str:
    assert operation.range is not None
    neutral = operation.range[0]
    if not operation.signed:
        return amount(operation, value)
    if neutral:
        return f"{operation.unit} {neutral:g} ± {abs(value - neutral):.2g}".strip()
    shown = amount(operation, abs(value))
    name, _, number = shown.rpartition(" ")
    return f"{name} ±{number}" if name and name == operation.unit else f"±{shown}"
