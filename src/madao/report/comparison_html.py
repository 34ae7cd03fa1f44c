"""The part of the page that compares runs."""

import collections
from collections.abc import Sequence

from madao.policy.describe import sentence
from madao.report.chart_model import Chart
from madao.report.compare import Comparison, comparison_charts, in_percent
from madao.report.html import escaped, figures, warnings
from madao.report.run import Run


def comparison_section(comparison: Comparison, number: int, charts: dict[str, Chart]) -> str:
    """Return a table of methods, the policies they learned, and charts."""
    reference = comparison.groups[0].label
    rows = []
    for group, mean, difference in comparison.rows():
        versus, p_value = "–", "–"
        if difference is not None and difference.mean is not None:
            versus = in_percent(difference.mean, signed=True)
            count = difference.mean.count
            versus += f" ({count} seed{'s' if count > 1 else ''})"
            p_value = _p_value(difference.p_value)
        times = collections.Counter(str(run.setting("seed", "?")) for run in group.runs)
        seeds = ", ".join(seed if count == 1 else f"{seed} ({count} runs)" for seed, count in times.items())
        rows.append(
            f"<tr><td>{escaped(group.label)}</td><td>{escaped(in_percent(mean))}</td><td>{escaped(versus)}</td>"
            f"<td>{escaped(p_value)}</td><td>{escaped(seeds)}</td></tr>"
        )
    table = (
        f"<table><thead><tr><th>augmentation</th><th>{escaped(comparison.measure)}</th>"
        f"<th>against {escaped(reference)}</th><th>p</th><th>seeds</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    how = (
        f"{comparison.measure.capitalize()} in percent: mean over seeds ± 95 % interval of the mean (Student's t). "
        f"Differences to {reference} are paired by seed. p is the p-value of a two-sided paired t-test, not corrected "
        "for the number of methods; it needs two common seeds or more, with different differences."
    )
    if comparison.measure != "test error":
        how += " No run has a test error yet. Learned policies were tuned on the validation images, which favours them."
    notes = []
    if unlearned := [str(run.path) for group in comparison.groups for run in group.runs if run.unlearned is not None]:
        notes.append(
            "The policies of these runs did not change, so no difference to other methods comes from learning: "
            f"{', '.join(unlearned)}."
        )
    if comparison.left_out:
        names = ", ".join(str(run.path) for run in comparison.left_out)
        notes.append(f"Not in this comparison, because they have no {comparison.measure} yet: {names}.")
    shown = figures(comparison_charts(comparison, number), "", charts)
    return (
        f'<section id="comparison-{number}"><h2>{escaped(comparison.problem)}</h2>'
        f'<div class="wide" tabindex="0">{warnings(notes)}{table}</div>{_learned(comparison)}'
        f'<p class="quiet">{escaped(how)}</p>{shown}'
        "</section>"
    )


def _learned(comparison: Comparison) -> str:
    """Describe the policy of the first run in each group that learns."""
    found = []
    for group in comparison.groups:
        run = group.runs[0]
        if run.learns and run.policy is not None and run.unlearned is None:
            seed = f", seed {run.setting('seed', '?')}" if len(group.runs) > 1 else ""
            text = f"{group.label}{seed}: the policy {sentence(run.policy)}."
            found.append(f'<p class="lead">{escaped(text)}</p>')
    return "".join(found)


def uncompared_runs(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> str:
    """Return a warning that names the runs in no comparison."""
    compared = {id(run) for comparison in comparisons for group in comparison.groups for run in group.runs}
    compared |= {id(run) for comparison in comparisons for run in comparison.left_out}
    alone = [str(run.path) for run in runs if id(run) not in compared]
    text = f"Not compared, because no other run has the same data, model and schedule: {', '.join(alone)}."
    return warnings([text] if alone else [])


def _p_value(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
