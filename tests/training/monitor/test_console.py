"""What a run says of its policy and of its time while it trains."""

import io
from typing import Any

import torch

from madao import Policy, Uniform
from madao.training.monitor.console import Console, favourite
from madao.training.monitor.time_left import TimeLeft


def test_a_policy_that_prefers_nothing_is_not_said_to_favour_anything() -> None:
    assert favourite(None) == favourite(Uniform()) == favourite(Policy()) == ""
    policy = Policy()
    with torch.no_grad():
        policy.selection_logits[:, 3] = 0.3  # 9 %, not 7
    assert favourite(policy) == ""


def test_what_is_chosen_most_is_told_with_its_share() -> None:
    policy = Policy(stages=2, operations=["Rotate", "Invert", "Color"])
    with torch.no_grad():
        policy.selection_logits[:, 2] = 2.0
    assert favourite(policy) == "favours Color (79 %)"


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def console(total: int) -> tuple[Console, Clock, io.StringIO]:
    stream, clock = io.StringIO(), Clock()
    shown = Console("run", total, stream=stream)
    shown.clock = TimeLeft(total, clock)
    return shown, clock, stream


def row(epoch: int, step: int) -> dict[str, Any]:
    return {"epoch": epoch, "step": step, "train_loss": 1.0, "validation_error": None}


def test_plain_lines_tell_the_time_left_and_the_last_one_the_total() -> None:
    shown, clock, stream = console(total=400)
    shown.start(0)
    clock.time += 5
    shown.step(20, 1.0, 0.5, 10.0, None)  # too early for an estimate
    clock.time += 35
    shown.step(40, 1.0, 0.5, 10.0, None)
    shown.step(60, 1.0, 0.5, 10.0, None)  # which is given once
    for epoch in range(1, 5):
        clock.time = 100.0 + 100 * epoch
        shown.epoch(row(epoch, 100 * epoch), 4, 10.0, None)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "run: about 6 min left"
    assert [line.split(" · ")[-1] for line in lines[1:]] == [
        "about 5 min left",
        "about 3 min left",
        "about 2 min left",
        "took 7 min",
    ]


def test_a_resumed_run_counts_its_own_steps() -> None:
    shown, clock, stream = console(total=400)
    shown.start(200)
    clock.time += 3600
    shown.epoch(row(3, 300), 4, 10.0, None)
    clock.time += 3600
    shown.epoch(row(4, 400), 4, 10.0, None)
    assert [line.split(" · ")[-1] for line in stream.getvalue().splitlines()] == [
        "about 1 h left",
        "took 2 h since it resumed",
    ]


def test_a_short_run_has_no_line_for_its_estimate() -> None:
    shown, clock, stream = console(total=400)
    shown.start(0)
    clock.time += 11
    shown.step(390, 1.0, 0.5, 10.0, None)
    assert stream.getvalue() == ""
    assert TimeLeft(400, clock).left(0) is None
