"""The charts of one run."""

from collections.abc import Sequence

from madao.policy import PolicySpec
from madao.report.chart_model import COLOURS, Chart, Panel, Series, operation_style, thinned
from madao.report.run import Run, Trajectory
from madao.report.run_files import Table

_READ = "Click a name to hide it, double-click to see it alone."


def charts_of(run: Run) -> list[Chart]:
    """Return every chart that the run has data for."""
    return [*policy_charts(run), *learning_charts(run), *health_charts(run), *cost_charts(run)]


def policy_charts(run: Run) -> list[Chart]:
    """Return charts of selection, application and magnitude over training."""
    trajectory = run.trajectory
    if trajectory is None or len(trajectory.epochs) < 2:
        return []
    shaded = (0.0, min(run.warmup, max(trajectory.epochs)), "warm-up") if run.warmup > 0 else None
    grey = " Grey: warm-up, before the policy learns." if shaded else ""
    selection = Chart(
        "selection",
        "Selection",
        "The probability that a stage draws each operation, as in Figure 2 of the paper. All begin equal; the "
        f"validation gradient favours the operations whose lines rise.{grey} {_READ}",
        _stage_panels(trajectory, "selection"),
        y_label="probability of selection",
        percent=True,
        shaded=shaded,
    )
    application = Chart(
        "application",
        "Application",
        "The probability that a stage applies an operation it has drawn; otherwise it leaves the image unchanged. "
        f"The policy uses operations whose lines fall less often. {_READ}",
        _stage_panels(trajectory, "application"),
        y_label="probability of application",
        percent=True,
        shaded=shaded,
    )
    charts = [selection, application]
    magnitudes = _magnitude_panels(trajectory, run.policy)
    if magnitudes:
        caption = (
            "The strength of each operation in its unit. The bottom of each panel leaves images unchanged; the top is "
            "the strongest allowed. Signed operations go either way with equal probability."
        )
        charts.append(
            Chart("magnitude", "Strength", caption, magnitudes, y_label="strength", shaded=shaded, small=True)
        )
    return charts


def _stage_panels(trajectory: Trajectory, name: str) -> list[Panel]:
    values = trajectory.values[name]
    top = float(values.max())
    panels = []
    for stage in range(values.shape[1]):
        series = [
            Series(operation, *thinned(trajectory.epochs, values[:, stage, index].tolist()), operation_style(index))
            for index, operation in enumerate(trajectory.operations)
        ]
        panels.append(Panel(series, f"Stage {stage + 1}", (0.0, 1.0 if name == "application" else top * 1.05)))
    return panels


def _magnitude_panels(trajectory: Trajectory, policy: PolicySpec | None) -> list[Panel]:
    """Return a panel for each operation, in the units that policy.json has."""
    if policy is None or tuple(operation.name for operation in policy.operations) != trajectory.operations:
        return []
    panels = []
    for index, operation in enumerate(policy.operations):
        if operation.range is None:
            continue
        neutral, strongest = operation.range
        values = neutral + (strongest - neutral) * trajectory.values["magnitude"][:, :, index]
        series = [
            Series(f"stage {stage + 1}", *thinned(trajectory.epochs, values[:, stage].tolist()), stage % COLOURS)
            for stage in range(values.shape[1])
        ]
        panels.append(Panel(series, f"{operation.name}\n{operation.unit}", (neutral, strongest)))
    return panels


_ERRORS = {
    "error": "The fraction of misclassified images. Training error counts augmented images, so it may stay above "
    "validation error.",
    "mIoU error": "One minus the mean intersection over union of the classes. In training, the fraction of wrong "
    "pixels in augmented images.",
    "k-NN error": "The fraction of images that their nearest training images misclassify. In training, the fraction "
    "of queries that are as near to another key as to their own.",
}


def learning_charts(run: Run) -> list[Chart]:
    """Return charts of loss and error in training, validation and test."""
    metrics, epochs = run.metrics, _column(run.metrics, "epoch")
    cross = "" if run.result.get("test_error") is None else " The cross is the test set, evaluated once at the end."
    charts = []
    for key, title, caption in (
        (
            "loss",
            "Loss",
            "Training loss is measured on augmented images while training, validation loss on unchanged images, so "
            f"the two are not on one scale.{cross}",
        ),
        (
            "error",
            run.error_name[0].upper() + run.error_name[1:],
            _ERRORS.get(run.error_name, _ERRORS["error"]) + cross,
        ),
    ):
        series = [
            Series("training", *thinned(*_known(epochs, metrics.get(f"train_{key}", []))), 0),
            Series("validation", *thinned(*_known(epochs, metrics.get(f"validation_{key}", []))), 1),
        ]
        test = run.result.get(f"test_{key}")
        if isinstance(test, float | int):
            series.append(Series("test", [float(run.result.get("epoch", run.epochs))], [float(test)], 2))
        panel = Panel([line for line in series if any(value is not None for value in line.y)])
        if panel.series:
            charts.append(Chart(key, title, caption, [panel], y_label=key, percent=key == "error"))
    return charts


def health_charts(run: Run) -> list[Chart]:
    """Return charts that show whether the hypergradient is reliable."""
    outer = run.outer
    if not outer.get("step"):
        return []
    steps = _column(outer, "step")
    norms = [
        Series(name, *thinned(steps, outer[column]), style)
        for column, name, style in (
            ("v_norm", "‖v‖, gradient of the validation loss", 0),
            ("q_norm", "‖q‖, after the inverse Hessian", 1),
            ("grad_norm", "‖∂g/∂φ‖, gradient of the policy", 2),
        )
        if any(outer.get(column, ()))
    ]
    charts = []
    if norms:
        charts.append(
            Chart(
                "norms",
                "Size of the hypergradient",
                "One point for each outer step (beyond 600, means over neighbours), on a logarithmic scale. Lines that "
                "grow without bound mean a diverging solver: a smaller outer.scale helps. A policy gradient near zero "
                "no longer changes the policy.",
                [Panel(norms)],
                x_label="step",
                y_label="norm",
                logarithmic=True,
            )
        )
    kinds = {
        **{kind: kind for kind in ("selection", "application", "magnitude")},
        "selection_deviations": "selection by class",
        "selection_outputs": "selection by image",
    }
    signals = [
        Series(name, *thinned(*_known(steps, _floored(outer.get(f"signal_{kind}", []), 1e-5))), style)
        for style, (kind, name) in enumerate(kinds.items())
        if any(value is not None for value in outer.get(f"signal_{kind}", ()))
    ]
    if signals:
        charts.append(
            Chart(
                "signal",
                "Signal in the policy's gradient",
                "The squared signal-to-noise ratio of one outer step, estimated from the agreement of consecutive "
                "steps. At 0.01 the signal outweighs the noise after about a hundred steps. A line on the lower edge "
                "means no measurable signal.",
                [Panel(signals)],
                x_label="step",
                y_label="signal ÷ noise",
                logarithmic=True,
            )
        )
    # A logarithmic axis has no zero: solved systems lie on its lower edge.
    residual = _known(steps, _floored(outer.get("residual", []), 1e-9))
    if residual[0]:
        charts.append(
            Chart(
                "residual",
                "Accuracy of the linear solve",
                "‖v − Hq‖ / ‖v‖: 0 is an exact solution, 1 no improvement on q = 0. A few Neumann terms stay near 1. "
                "Growth without bound would be a bad sign.",
                [Panel([Series("residual", *thinned(*residual), 0)])],
                x_label="step",
                y_label="relative residual",
                logarithmic=True,
            )
        )
    return charts


def cost_charts(run: Run) -> list[Chart]:
    """Return charts of time and memory, of training and of learning the policy."""
    timing = run.timing
    epochs, seconds = _column(timing, "epoch"), timing.get("seconds", [])
    if not epochs or not any(seconds):
        return []
    outer = timing.get("outer_seconds", [None] * len(seconds))
    inner = [None if s is None else s - (o or 0.0) for s, o in zip(seconds, outer, strict=True)]
    series = [Series("training", epochs, inner, 0)]
    if any(outer):
        series.append(Series("learning the policy", epochs, outer, 1))
    waiting = timing.get("waiting_seconds", [])
    if any(waiting):
        series.append(Series("waiting for images", epochs, waiting, 2))
    charts = [
        Chart(
            "time",
            "Time",
            "Seconds per epoch, without evaluation: steps of the weights, and outer steps of the policy. The ratio of "
            "the second line to the first is the relative cost of learning the policy. Both include waiting for "
            "images that are read while training.",
            [Panel(series)],
            y_label="seconds",
        )
    ]
    memory = [
        Series(name, epochs, timing[column], style)
        for column, name, style in (("memory_mib", "training", 0), ("outer_memory_mib", "learning the policy", 1))
        if any(timing.get(column, ()))
    ]
    if memory:
        charts.append(
            Chart(
                "memory",
                "Memory",
                "Peak memory. On a GPU: memory that torch held there, before the first outer step and after. On the "
                "CPU: memory of the whole process so far, without this distinction.",
                [Panel(memory)],
                y_label="MiB",
            )
        )
    return charts


def _column(table: Table, name: str) -> list[float]:
    return [value or 0.0 for value in table.get(name, ())]


def _floored(values: Sequence[float | None], least: float) -> list[float | None]:
    return [None if value is None else max(value, least) for value in values]


def _known(x: Sequence[float], y: Sequence[float | None]) -> tuple[list[float], list[float | None]]:
    """Keep the points with a value, so that a line joins them."""
    pairs = [(place, value) for place, value in zip(x, y, strict=False) if value is not None]
    return [place for place, _ in pairs], [value for _, value in pairs]
