"""A policy as a notebook shows it: a table with pictures, and a figure."""

import html
from typing import TYPE_CHECKING

import torch

from madao.policy.describe import sentence
from madao.policy.display.pictures import data_url, sample_picture
from madao.policy.stages import PolicyNumbers
from madao.policy.units import strength

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE = 48
_CELL = 'style="text-align:left;padding:1px 10px;white-space:nowrap"'
_BAR = "display:inline-block;height:0.7em;background:#0072b2;margin-right:6px"


def policy_html(spec: PolicyNumbers) -> str:
    """Return a policy as an HTML table: for each operation a picture, and for each stage share and strength.

    For a conditional policy, the table shows the part that all images share.
    """
    selection, _, magnitude = spec.tensors()
    original = sample_picture(_SIDE)[None]
    most = float(selection.max())
    headings = "".join(f"<th {_CELL}>stage {number}</th>" for number in range(1, len(spec.stages) + 1))
    rows = []
    for index in selection.mean(0).argsort(descending=True, stable=True).tolist():
        operation = spec.operations[index]
        likeliest = int(selection[:, index].argmax())
        picture = operation(original, magnitude[likeliest, index, None], torch.ones(1), spec.fill)[0]
        cells = []
        for stage in spec.stages:
            entry = stage[index]
            how = strength(operation, entry.magnitude, spec.magnitude_jitter)
            applied = f"applied {100 * entry.application:.0f} %"
            bar = f'<span style="{_BAR};width:{5 * entry.selection / most:.2f}em"></span>'
            note = applied if how == "–" else f"{html.escape(how)}, {applied}"
            cells.append(f"<td {_CELL}>{bar}{100 * entry.selection:.1f} %<br><small>{note}</small></td>")
        image = f'<img src="{data_url(picture)}" alt="" width="{_SIDE}" height="{_SIDE}">'
        rows.append(f"<tr><td {_CELL}>{image}</td><th {_CELL}>{html.escape(operation.name)}</th>{''.join(cells)}</tr>")
    kind = {"none": "", "class": " Each class has its own; this is the shared part."}.get(
        spec.conditional_on, " Each image has its own; this is the shared part."
    )
    return (
        f"<p>This policy {html.escape(sentence(spec))}.{kind}</p>"
        f"<table><thead><tr><th></th><th></th>{headings}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def policy_figure(spec: PolicyNumbers) -> "Figure":
    """Return a matplotlib figure: how often each stage selects each operation, the most frequent operation on top."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    selection, application, _ = spec.tensors()
    order = selection.mean(0).argsort(stable=True).tolist()
    figure = Figure(figsize=(6, 0.6 + 0.32 * len(order)), layout="constrained")
    axis = figure.subplots()
    height = 0.8 / len(spec.stages)
    for number, (shares, applied) in enumerate(zip(selection, application, strict=True)):
        places = [place + height * (len(spec.stages) / 2 - number - 0.5) for place in range(len(order))]
        bars = axis.barh(places, shares[order].numpy(), height, label=f"stage {number + 1}, selected", alpha=0.4)
        colour = bars.patches[0].get_facecolor()[:3]
        axis.barh(places, (shares * applied)[order].numpy(), height, label=f"stage {number + 1}, applied", color=colour)
    names = []
    for index in order:
        likeliest = max((stage[index] for stage in spec.stages), key=lambda entry: entry.selection)
        how = strength(spec.operations[index], likeliest.magnitude, spec.magnitude_jitter)
        names.append(spec.operations[index].name + ("" if how == "–" else f", {how}"))
    axis.set_yticks(range(len(order)), [name.replace("$", r"\$") for name in names])
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    return figure
