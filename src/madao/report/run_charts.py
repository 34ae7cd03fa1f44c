"""The charts of one run."""

from collections.abc import Sequence

from madao.policy import PolicySpec
from madao.report.chart_model import COLOURS, Chart, Panel, Series, operation_style, thinned
from madao.report.run import Run, Table, Trajectory

_READ = "Click a name to hide it, double-click to see it alone."


def charts_of(run: Run) -> list[Chart]:
    """Every chart there is data for."""
    return [*policy_charts(run), *learning_charts(run), *health_charts(run), *cost_charts(run)]


def policy_charts(run: Run) -> list[Chart]:
    """Selection, application and magnitude over training."""
    trajectory = run.trajectory
    if trajectory is None or len(trajectory.epochs) < 2:
        return []
    shaded = (0.0, min(run.warmup, max(trajectory.epochs)), "warm-up") if run.warmup > 0 else None
    grey = " Grey: warm-up, nothing is learned yet." if shaded else ""
    selection = Chart(
        "selection",
        "What the policy chooses",
        "The probability that a stage draws each operation, as in Figure 2 of the paper. All begin equal; a line "
        f"that rises is an operation the validation gradient favours.{grey} {_READ}",
        _stage_panels(trajectory, "selection"),
        y_label="probability of selection",
        percent=True,
        shaded=shaded,
    )
    application = Chart(
        "application",
        "How often it applies what it chose",
        "Once drawn, an operation is applied with this probability; otherwise the image stays as it is at that stage. "
        f"A line that falls is an operation the policy has learned to use sparingly. {_READ}",
        _stage_panels(trajectory, "application"),
        y_label="probability of application",
        percent=True,
        shaded=shaded,
    )
    charts = [selection, application]
    magnitudes = _magnitude_panels(trajectory, run.policy)
    if magnitudes:
        caption = (
            "The strength of each operation in its own unit; the bottom of each panel changes nothing, the top is "
            "the strongest allowed. Signed operations go either way by a fair coin."
        )
        charts.append(
            Chart("magnitude", "How strongly", caption, magnitudes, y_label="strength", shaded=shaded, small=True)
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
    """One panel an operation, in real units, which are written in policy.json."""
    if policy is None or tuple(operation.name for operation in policy.operations) != trajectory.operations:
        return []
    panels = []
    for index, operation in enumerate(policy.operations):
        if operation.range is None:
            continue
        neutral, strongest = operation.range
        values = neutral + (strongest - neutral) * trajectory.values["magnitude"][:, :, index]
        series = [
            Series(f"stage {stage + 1}", *thinned(trajectory.epochs, values[:, stage].tolist()), _other(stage))
            for stage in range(values.shape[1])
        ]
        panels.append(Panel(series, f"{operation.name}\n{operation.unit}", (neutral, strongest)))
    return panels


_ERRORS = {
    "error": "The part of images that is misclassified. Training error counts augmented images, so it may lie above "
    "validation error for good.",
    "mIoU error": "One minus the mean over classes of intersection by union. In training, the part of pixels that are "
    "wrong, of augmented images.",
    "k-NN error": "The part of images whose class the nearest training images do not tell. In training, the part of "
    "queries that are as near to another key as to their own.",
}


def learning_charts(run: Run) -> list[Chart]:
    """Loss and error of training, validation and test."""
    metrics, epochs = run.metrics, _column(run.metrics, "epoch")
    cross = "" if run.result.get("test_error") is None else " The cross is the test set, seen once at the end."
    charts = []
    for key, title, caption in (
        (
            "loss",
            "Loss",
            "Training loss is measured while learning, on augmented images; validation loss on images as they are, "
            f"so the two do not lie on one scale.{cross}",
        ),
        (
            "error",
            run.error[0].upper() + run.error[1:],
            _ERRORS.get(run.error, _ERRORS["error"]) + cross,
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
    """Whether the hypergradient can be trusted."""
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
                "One point an outer step (of more than 600, means over neighbours), on a logarithmic scale. Lines that "
                "run away upwards mean a diverging solver: a smaller --outer.scale helps. A policy gradient near "
                "nothing has nothing left to say.",
                [Panel(norms)],
                x_label="step",
                y_label="norm",
                logarithmic=True,
            )
        )
    kinds = {
        **{kind: kind for kind in ("selection", "application", "magnitude")},
        "selection_deviations": "selection, of each class",
        "selection_outputs": "selection, of each image",
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
                "The squared signal-to-noise ratio of one outer step, from what consecutive steps have in common. At "
                "0.01 it takes some hundred steps until the signal outweighs the noise. On the lower edge: no signal "
                "that can be told from noise.",
                [Panel(signals)],
                x_label="step",
                y_label="signal ÷ noise",
                logarithmic=True,
            )
        )
    # A logarithmic axis has no zero: what is solved lies on its lower edge.
    residual = _known(steps, _floored(outer.get("residual", []), 1e-9))
    if residual[0]:
        charts.append(
            Chart(
                "residual",
                "How well the linear system is solved",
                "‖v − Hq‖ / ‖v‖: 0 is solved, 1 is what no work at all gives. A few Neumann terms stay near 1. That "
                "it runs away without end would be a bad sign.",
                [Panel([Series("residual", *thinned(*residual), 0)])],
                x_label="step",
                y_label="relative residual",
                logarithmic=True,
            )
        )
    return charts


def cost_charts(run: Run) -> list[Chart]:
    """Time and memory of training and of learning the policy."""
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
            "Seconds an epoch: steps of the weights, and outer steps of the policy. Evaluation is not counted. The "
            "second line over the first is what learning the policy costs. Waiting for images, "
            "where they are read while training, is part of both.",
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
                "Peak memory: on a GPU what torch held there, before the first outer step and after; on the CPU the "
                "most the whole process has taken so far, where the two cannot be told apart.",
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
    """Only the places where something was measured, so that a line joins them."""
    pairs = [(place, value) for place, value in zip(x, y, strict=False) if value is not None]
    return [place for place, _ in pairs], [value for _, value in pairs]


def _other(index: int) -> int:
    return index % COLOURS
