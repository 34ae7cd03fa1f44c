"""The page of a report: one HTML file that needs no server and no network."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from importlib import resources

import yaml

from madao.policy import PolicySpec
from madao.policy.describe import sentence
from madao.policy.units import strength
from madao.report.chart_model import Chart
from madao.report.compare import Comparison
from madao.report.comparison_html import comparison_section, uncompared_runs
from madao.report.gallery import Gallery, Row, Tile, gallery
from madao.report.heatmap import heat_map
from madao.report.html import escaped, figures, warnings
from madao.report.run import Run, last
from madao.report.run_charts import cost_charts, health_charts, learning_charts, policy_charts

# Scripts, styles and images come from the file alone.
_SECURITY_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@dataclasses.dataclass(frozen=True)
class Page:
    """A page and its charts, by the names of their places."""

    text: str
    charts: dict[str, Chart]


def page(runs: Sequence[Run], comparisons: Sequence[Comparison], left_out: Sequence[str] = ()) -> Page:
    """Build a page: of one run in full, of several first the comparison and then each run, folded.

    Args:
        runs: The runs to show.
        comparisons: Comparisons of these runs.
        left_out: Messages about runs that cannot be shown.
    """
    charts: dict[str, Chart] = {}
    body = [comparison_section(each, number, charts) for number, each in enumerate(comparisons, 1)]
    if len(runs) == 1:
        title = f"madao: {runs[0].name}"
        body.append(warnings(left_out) + _run(runs[0], "", charts))
    else:
        title = f"madao: {len(runs)} runs"
        body.insert(0, f"<h1>{len(runs)} runs</h1>" + warnings(left_out) + uncompared_runs(runs, comparisons))
        body.append("<h2>Each run</h2>")
        for number, run in enumerate(runs, 1):
            about = f"{run.path}: {run.method}, seed {run.setting('seed', '?')}, {_outcome(run)}"
            body.append(f"<details><summary>{escaped(about)}</summary>{_run(run, f'{number}-', charts)}</details>")
    data = json.dumps({place: chart.to_dict() for place, chart in charts.items()}, ensure_ascii=False, allow_nan=False)
    text = _TEMPLATE.format(
        title=escaped(title),
        security_policy=_SECURITY_POLICY,
        style=_asset("page.css"),
        body="\n".join(body),
        # No text in the data may end the script.
        data=data.replace("<", "\\u003c"),
        script=_asset("chart.js"),
    )
    return Page(text, charts)


_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{security_policy}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<noscript><p class="warning">The charts need JavaScript.</p></noscript>
{body}
<script type="application/json" id="charts">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def _run(run: Run, prefix: str, charts: dict[str, Chart]) -> str:
    parts = [_head(run, "h2" if prefix else "h1")]
    sections: list[tuple[str, str, str]] = []
    moving = figures(policy_charts(run), prefix, charts)
    if run.policy is not None or moving:
        table = "" if run.policy is None else heat_map(run.policy, run.samples) + _policy_table(run.policy)
        sections.append(("policy", "The policy", table + moving))
    if run.policy is not None and run.samples is not None:
        shown = _gallery(gallery(run.policy, run.samples, run.labels), learned=run.trajectory is not None)
        sections.append(("gallery", "Its effect on images", shown))
    sections.append(("learning", "Loss and error", figures(learning_charts(run), prefix, charts)))
    health = figures(health_charts(run), prefix, charts)
    if health:
        sections.append(("health", "Reliability of the gradient", _steps_taken(run) + health))
    cost = figures(cost_charts(run), prefix, charts)
    if cost:
        sections.append(("cost", "Time and memory", _cost(run) + cost))
    sections.append(("settings", "Settings", _settings(run)))
    links = "".join(f'<a href="#{prefix}{key}">{escaped(title)}</a>' for key, title, _ in sections)
    parts.append(f"<nav>{links}</nav>")
    parts += [f'<section id="{prefix}{key}"><h2>{escaped(title)}</h2>{text}</section>' for key, title, text in sections]
    return "\n".join(parts)


def _head(run: Run, heading: str) -> str:
    facts = {
        f"test {run.error_name}": _percent(run.result.get("test_error")),
        f"validation {run.error_name}": _percent(last(run.metrics.get("validation_error", ()))),
        **_other_errors(run),
        "epochs": f"{run.epochs} of {run.setting('epochs', '?')}",
        "augmentation": run.method,
        "data": run.setting("data.name") or run.setting("data.root") or "digits",
        "model": run.setting("model.name") or run.environment.get("model", "default"),
        "seed": run.setting("seed", "?"),
        "device": run.environment.get("device", "?"),
    }
    cells = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in facts.items())
    lead = ""
    if run.policy is not None:
        lead = f'<p class="lead">{_shared(run.policy) or "The policy"} {escaped(sentence(run.policy))}.</p>'
    return f"<{heading}>{escaped(run.name)}</{heading}>{lead}{_warnings(run)}<dl class='facts'>{cells}</dl>"


def _warnings(run: Run) -> str:
    texts = []
    if not run.result:
        texts.append(
            f"This run has not ended: {run.epochs} of {run.setting('epochs', '?')} epochs are finished, and the test "
            f"set has not been used. To resume: madao train --out {shlex.quote(str(run.path))} --resume"
        )
    if run.unlearned is not None:
        texts.append(f"The policy did not change: {run.unlearned}.")
    if run.missing:
        texts.append("Missing or unreadable in this run directory: " + "; ".join(run.missing) + ".")
    return warnings(texts)


def _policy_table(policy: PolicySpec) -> str:
    stages = range(len(policy.stages))
    over = "".join(f'<th colspan="3">stage {stage + 1}</th>' for stage in stages)
    head = "<th>drawn</th><th>then applied</th><th>strength</th>" * len(policy.stages)
    shares = [sum(stage[index].selection for stage in policy.stages) for index in range(len(policy.operations))]
    most = max(entry.selection for stage in policy.stages for entry in stage)
    rows = []
    for index in sorted(range(len(shares)), key=lambda index: -shares[index]):
        operation = policy.operations[index]
        cells = []
        for stage in policy.stages:
            entry = stage[index]
            part = 100 * entry.selection / most
            cells.append(
                f'<td class="share" style="--part: {part:.1f}%">{100 * entry.selection:.1f} %</td>'
                f"<td>{100 * entry.application:.0f} %</td>"
                f"<td>{escaped(strength(operation, entry.magnitude, policy.magnitude_jitter))}</td>"
            )
        rows.append(f"<tr><td>{escaped(operation.name)}</td>{''.join(cells)}</tr>")
    return (
        f"{f'<h3>{_shared(policy)}</h3>' if _shared(policy) else ''}<p>For each image, each stage draws one "
        f"operation and then applies it or not. The uniform policy draws each with {100 / len(shares):.1f} %.</p>"
        f'<div class="wide" tabindex="0"><table><thead><tr><th></th>{over}</tr><tr><th>operation</th>{head}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _shared(policy: PolicySpec) -> str:
    """Return the name of the shared part of a conditional policy; empty for others."""
    if policy.classes:
        return "The policy that all classes share"
    return "" if policy.network is None else "The policy that all images share"


def _gallery(shown: Gallery, learned: bool) -> str:
    strength_of = "learned" if learned else "fixed"
    sharp = " pixelated" if shown.pixelated else ""
    columns = len(shown.originals)
    blocks = []
    for number, rows in enumerate(shown.stages):
        originals = Row("originals", "training images", shown.originals)
        cells = "".join(_gallery_row(row) for row in (originals, *rows))
        grid = f'<div class="gallery by-operation{sharp}" style="--columns: {columns}">{cells}</div>'
        opened = " open" if number == 0 else ""
        blocks.append(f"<details{opened}><summary>Stage {number + 1}</summary>{grid}</details>")
    draws = "".join(
        f"<div>{_image(tile)}<span>{escaped(tile.caption)}</span></div>" for row in shown.draws for tile in row.tiles
    )
    count = len(shown.draws[0].tiles)
    whole = f'<div class="gallery by-draw{sharp}" style="--columns: {count}">{draws}</div>'
    return (
        f'<figure data-gallery="operations"><h3>Each operation at its {strength_of} strength</h3>{"".join(blocks)}'
        "<figcaption>The most probable operation comes first. Signed operations alternate their direction from image "
        "to image. Hold the pointer over an image to read the operation.</figcaption></figure>"
        f'<figure data-gallery="draws"><h3>The whole policy</h3>{whole}'
        "<figcaption>Each row: an original, then draws from all stages, as in training. Training then adds the base "
        "augmentation (crop, flip and Cutout), which is not shown.</figcaption></figure>"
    )


def _gallery_row(row: Row) -> str:
    label = f'<div class="label"><b>{escaped(row.heading)}</b>{escaped(row.note)}</div>'
    return label + "".join(_image(tile) for tile in row.tiles)


def _image(tile: Tile) -> str:
    return f'<img src="{tile.source}" alt="{escaped(tile.caption)}" title="{escaped(tile.caption)}">'


_STATES = {
    "converged": "solved",
    "direct": "computed directly",
    "truncated": "truncated, as usual with few steps",
    "diverging": "diverging",
    "negative_curvature": "stopped at negative curvature",
    "non_finite": "not finite",
}


def _steps_taken(run: Run) -> str:
    taken = len(run.outer["step"])
    skipped = sum(value == 0 for value in run.outer.get("applied", ()))
    states = ", ".join(f"{count} {_STATES.get(name, name)}" for name, count in run.statuses.items())
    return (
        f"<p>{taken} outer steps, {skipped} skipped as unreliable. Final state of their linear systems: "
        f"{escaped(states or 'not recorded')}.</p>"
    )


def _cost(run: Run) -> str:
    seconds = sum(value or 0.0 for value in run.timing.get("seconds", ()))
    outer = sum(value or 0.0 for value in run.timing.get("outer_seconds", ()))
    text = f"{_duration(seconds)} of training"
    if outer:
        ratio = seconds / max(seconds - outer, 1e-9)
        text += f", {_duration(outer)} of it for the policy: {ratio:.2f} × the time without a learned policy"
    return f"<p>{escaped(text)}.</p>{_waiting(run, seconds)}"


def _waiting(run: Run, seconds: float) -> str:
    waited = sum(value or 0.0 for value in run.timing.get("waiting_seconds", ()))
    share = waited / max(seconds, 1e-9)
    rate, own = (last(run.timing.get(name, ())) for name in ("images_per_second", "model_images_per_second"))
    if share < 0.1 or rate is None or own is None:
        return ""
    text = (
        f"The model waited for images {100 * share:.0f} % of the time: in the last epoch it got {rate:,.0f} of the "
        f"{own:,.0f} images/s it can train on. Raise `data.workers` or `data.cache_gib`, or lower `data.size`."
    )
    return warnings([text])


def _settings(run: Run) -> str:
    settings = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True)
    about = ", ".join(f"{name} {value}" for name, value in run.environment.items())
    shown = f"<details><summary>config.yaml</summary><pre>{escaped(settings)}</pre></details>"
    return f'{shown}<p class="quiet">{escaped(about)}</p>'


def _other_errors(run: Run) -> dict[str, str]:
    names = {"mean_class_error": "mean per-class error", "pixel_error": "pixel error"}
    metrics = run.result.get("test_metrics", {})
    return {f"test {name}": _percent(metrics[key]) for key, name in names.items() if key in metrics}


def _outcome(run: Run) -> str:
    if isinstance(run.result.get("test_error"), float | int):
        return f"test {run.error_name} {_percent(run.result['test_error'])}"
    known = _percent(last(run.metrics.get("validation_error", ())))
    return f"{'' if run.result else 'not ended, '}validation {run.error_name} {known}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _asset(name: str) -> str:
    return (resources.files("madao.report") / name).read_text(encoding="utf-8")
