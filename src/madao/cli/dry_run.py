"""`--dry-run` of `madao train` and `madao compare`: a description of the training, its time and its memory."""

import dataclasses
from pathlib import Path

from madao.cli import say
from madao.config.train_config import TrainConfig
from madao.distributed.group import ProcessGroup
from madao.experiments.compare_config import Plan
from madao.experiments.comparison_folder import check_folder
from madao.experiments.table import TUNED
from madao.text import counted
from madao.training.dry_run import Cost, build_dry_run, measure_cost
from madao.training.monitor.advice import describe_run
from madao.training.monitor.time_left import describe_seconds
from madao.training.run.result import FILE
from madao.training.run.state import Run

_NOTHING = "nothing was trained or written; leave out --dry-run to train"


def rehearse_training(config: TrainConfig) -> None:
    """Describe the run that `madao train` would train."""
    run = build_dry_run(config)
    described = describe_run(run)
    cost = measure_cost(run)
    if not ProcessGroup.current().is_first:
        return
    for line in [*described, *run.notes, _parts(run), _pace(cost)]:
        say(line)
    memory = _memory(run.device.type, cost.memory_mib)
    say(f"takes about {describe_seconds(cost.seconds)}{memory}; goes into {run.directory.path}")
    say(_NOTHING)


def rehearse_comparison(plan: Plan) -> None:
    """Describe the runs that `madao compare` would train."""
    check_folder(plan)
    seconds, trainings, most, device = 0.0, 0, 0.0, "cpu"
    for method in plan.methods:
        seeds = [seed for seed in plan.seeds if not _finished(plan, method, seed)]
        search = plan.chosen.search
        times = len(seeds) + (search.trials * search.seeds if method == TUNED else 0)
        if not seeds:
            say(f"{method}: finished")
            continue
        config = plan.run_config(method, seeds[0])
        begun = config.out is not None and Path(config.out).exists()
        run = build_dry_run(dataclasses.replace(config, resume=begun))
        if not trainings:
            for line in describe_run(run):
                say(line)
        cost = measure_cost(run)
        say(f"{method}: {counted(times, 'training')}; in each, {_pace(cost)}, about {describe_seconds(cost.seconds)}")
        seconds, trainings, device = seconds + times * cost.seconds, trainings + times, run.device.type
        most = max(most, cost.memory_mib or 0.0)
    jobs = f", or less with {plan.chosen.jobs} at a time" if plan.chosen.jobs > 1 else ""
    total = f"about {describe_seconds(seconds)}{jobs}{_memory(device, most)}"
    say(f"{counted(trainings, 'training')}: {total}; the table goes into {plan.folder}")
    say(_NOTHING)


def _finished(plan: Plan, method: str, seed: int) -> bool:
    out = plan.run_config(method, seed).out
    return out is not None and method != TUNED and (Path(out) / FILE).is_file()


def _parts(run: Run) -> str:
    count = sum(parameter.numel() for parameter in run.network.parameters())
    return f"{run.model_name} with {counted(count, 'parameter')}, trained by {run.config.optimizer.name}"


def _pace(cost: Cost) -> str:
    steps = f"{counted(cost.steps, 'step')} of {_short(cost.step_seconds)}"
    if cost.outer_seconds is None:
        return steps
    return f"{steps} and {counted(cost.outer_steps, 'outer step')} of {_short(cost.outer_seconds)}"


def _short(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"


def _memory(device: str, mib: float | None) -> str:
    if not mib:
        return ""
    return f" and {mib:,.0f} MiB of memory ({'on the GPU' if device == 'cuda' else 'the whole process'})"
