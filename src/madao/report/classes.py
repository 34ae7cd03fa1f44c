"""What a policy with classes chooses for each: a map of class by operation."""

import html

from madao.policy import PolicySpec

_MOST = 200
"""Classes that are shown: of more, those that depart the most from what they share."""


def heat_map(policy: PolicySpec) -> str:
    """A table of how often each class draws each operation, the mean over stages; empty where there are no classes."""
    if not policy.classes:
        return ""
    shared = policy.tensors()[0].mean(0)
    each = policy.tables()[0].mean(0)
    order = shared.argsort(descending=True, stable=True).tolist()
    most = float(each.max())
    departure = (each - shared).abs().sum(1)
    rows = sorted(departure.argsort(descending=True, stable=True)[:_MOST].tolist())
    head = "".join(f'<th scope="col">{html.escape(policy.operations[index].name)}</th>' for index in order)
    lines = []
    for name, shares in [(policy.classes[row], each[row].tolist()) for row in rows] + [("shared", shared.tolist())]:
        cells = "".join(
            f'<td class="heat" style="--part: {70 * shares[index] / most:.0f}%">{100 * shares[index]:.0f}</td>'
            for index in order
        )
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    left = "" if len(rows) == len(policy.classes) else f", the {len(rows)} that depart the most from what they share"
    return (
        '<figure data-map="classes"><h3>What each class chooses</h3><div class="wide" tabindex="0"><table class="map">'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        "<figcaption>How often an image of each class draws each operation, in percent, the mean over stages"
        f"{left}; the darker the more often. The last row is what the classes share.</figcaption></figure>"
    )
