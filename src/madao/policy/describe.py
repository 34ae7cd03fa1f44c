"""A policy in words: strengths in real units, and what it prefers."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from madao.ops import Operation

if TYPE_CHECKING:
    from madao.policy.draw import Draw
    from madao.policy.spec import PolicySpec

_OFTEN, _SELDOM = 1.5, 0.25
"""How many times as often as by chance an operation is chosen to be preferred, and to be as good as never chosen."""

_ALIKE = 0.01
"""By how much shares differ that differ at all."""

_RARE = 0.25
"""How rarely an operation is applied once drawn for a sentence to say so."""


def strength(operation: Operation, value: float | None, magnitude_jitter: float = 0.0) -> str:
    """A parameter in real units, on the positive side where signed: "±21°", "factor 1 ± 0.62", "up to 6 bits"."""
    if operation.range is None or value is None:
        return "–"
    return _strongest(operation, value) if not magnitude_jitter else f"up to {_strongest(operation, value)}"


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


def amount(operation: Operation, value: float) -> str:
    """One parameter as it is, with its unit and sign: "−21°", "factor 1.62", "28 % of the width"."""
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


def steps(operations: Sequence[Operation], draw: "Draw", image: int) -> list[str]:
    """What a draw does to an image, a step each: ["Rotate −21°", "Invert"]."""
    found = []
    for stage in range(draw.stages):
        if draw.applied[stage, image]:
            operation = operations[int(draw.choice[stage, image])]
            magnitude, sign = draw.magnitude[stage, image], draw.sign[stage, image]
            value = f" {amount(operation, float(operation.value(magnitude, sign)))}" if operation.has_magnitude else ""
            found.append(operation.name + value)
    return found


def alike(shares: Iterable[float]) -> bool:
    """Whether operations are chosen equally often, as far as anybody cares."""
    known = [*shares]
    return max(known) - min(known) < _ALIKE


def preferred(shares: Iterable[float]) -> bool:
    """Whether some operation is chosen clearly more often than by chance."""
    known = [*shares]
    return max(known) >= _OFTEN / len(known)


def sentence(spec: "PolicySpec") -> str:
    """What a policy prefers: "prefers Rotate by ±21° (47 % of draws) …; almost never Invert"."""
    count, stages = len(spec.operations), len(spec.stages)
    shares, strengths, applied = [], [], []
    for index, operation in enumerate(spec.operations):
        entries = [stage[index] for stage in spec.stages]
        share = sum(entry.selection for entry in entries) / stages
        shares.append(share)
        # Of several stages, the strength an image is likeliest to meet.
        likeliest = max(entries, key=lambda entry: entry.selection)
        strengths.append(strength(operation, likeliest.magnitude, spec.magnitude_jitter))
        applied.append(likeliest.application)
    order = sorted(range(count), key=lambda index: -shares[index])

    def named(index: int) -> str:
        how = f" by {strengths[index]}" if strengths[index] != "–" else ""
        seldom = f", applied in {100 * applied[index]:.0f} % of them" if applied[index] < _RARE else ""
        return f"{spec.operations[index].name}{how} ({100 * shares[index]:.0f} % of draws{seldom})"

    if alike(shares):
        return f"draws its {count} operations equally often"
    if not preferred(shares):
        return f"has no strong preference: the likeliest of {count} is {named(order[0])}"
    often = [index for index in order if shares[index] >= _OFTEN / count][:3]
    seldom = [spec.operations[index].name for index in reversed(order) if shares[index] <= _SELDOM / count][:3]
    never = f"; almost never {_listed(seldom)}" if seldom else ""
    return f"prefers {_listed([named(index) for index in often])}{never}"


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else "".join(items)
