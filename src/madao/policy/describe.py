"""A policy or a draw as a sentence for people."""

from collections.abc import Iterable, Sequence

from madao.ops import Operation
from madao.policy.draw import Draw
from madao.policy.stages import PolicyNumbers
from madao.policy.units import amount, strength

_OFTEN, _SELDOM = 1.5, 0.25
"""An operation is preferred from 1.5 times the even share on, and almost never drawn up to a quarter of it."""

_ALIKE = 0.01
"""Shares that differ by less than this count as equal."""

_RARE = 0.25
"""The sentence mentions application probabilities below this."""


def steps(operations: Sequence[Operation], draw: Draw, image: int) -> list[str]:
    """List the operations that a draw applies to an image: ["Rotate −21°", "Invert"]."""
    found = []
    for stage in range(draw.stages):
        if draw.applied[stage, image]:
            operation = operations[int(draw.choice[stage, image])]
            magnitude, sign = draw.magnitude[stage, image], draw.sign[stage, image]
            value = f" {amount(operation, float(operation.value(magnitude, sign)))}" if operation.has_magnitude else ""
            found.append(operation.name + value)
    return found


def alike(shares: Iterable[float]) -> bool:
    """Return whether all shares are equal within a hundredth."""
    known = [*shares]
    return max(known) - min(known) < _ALIKE


def preferred(shares: Iterable[float]) -> bool:
    """Return whether some operation has at least 1.5 times the even share."""
    known = [*shares]
    return max(known) >= _OFTEN / len(known)


def sentence(spec: PolicyNumbers) -> str:
    """Describe a policy's preferences: "prefers Rotate by ±21° (47 % of draws) …; almost never Invert"."""
    count, stages = len(spec.operations), len(spec.stages)
    shares, strengths, applied = [], [], []
    for index, operation in enumerate(spec.operations):
        entries = [stage[index] for stage in spec.stages]
        share = sum(entry.selection for entry in entries) / stages
        shares.append(share)
        # With several stages, show the strength that images meet most often.
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
