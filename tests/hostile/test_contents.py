"""Whole files with wrong contents: one line that names the file, and no traceback."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from madao.cli import main
from madao.config.train_config import TrainConfig
from madao.errors import ModelError, UserError
from madao.files import load_torch, save_torch
from madao.models import build
from madao.training.interrupt import Interrupted
from madao.training.run.directory import RunDirectory
from madao.training.trainer import Trainer
from tests.helpers.command_line import fails
from tests.helpers.training import StoppingTrainer, built, settings

State = dict[str, Any]
Change = Callable[[State], Any]


def put(*path: Any) -> Change:
    """Replace what is at all but the last of the names by the last."""

    def change(state: State) -> State:
        *places, name, value = path
        part: Any = state
        for place in places:
            part = part[place]
        part[name] = value
        return state

    return change


def drop(*path: Any) -> Change:
    def change(state: State) -> State:
        *places, name = path
        part: Any = state
        for place in places:
            part = part[place]
        del part[name]
        return state

    return change


OTHER = torch.zeros(2, 3, 5)
ANYWHERE: dict[str, Change] = {
    "a tensor": lambda _: OTHER,
    "a list": lambda _: [1, 2],
    "text": lambda _: "weights",
    "nothing": lambda _: None,
    "an empty dict": lambda _: {},
    "no model": drop("model"),
    "a model of text": put("model", "small-cnn"),
    "a model of no weights": put("model", {}),
    "a weight of another shape": put("model", "conv1.weight", OTHER),
    "a weight that is a number": put("model", "conv1.weight", 0.5),
    "a weight whose name is a number": put("model", 7, OTHER),
    "one weight fewer": drop("model", "conv1.weight"),
}
FIELDS: dict[str, Change] = {
    "no classes": drop("classes"),
    "classes of a number": put("classes", 3),
    "no epoch": drop("epoch"),
    "an epoch of text": put("epoch", "two"),
    "an error of text": put("validation_error", "none"),
}
STATE: dict[str, Change] = {
    "a step between two": put("step", 6.5),
    "a step below 0": put("step", -1),
    "an epoch after the end": put("epoch", 99),
    "a best that is a number": put("best", 0.5),
    "data that are a list": put("data", []),
    "no random state": drop("random", "cpu"),
    "a random state of floats": put("random", "cpu", OTHER),
    "an optimizer of nothing": put("optimizer", {}),
    "momentum of another shape": put("optimizer", "state", 0, "momentum_buffer", OTHER),
    "momentum of text": put("optimizer", "state", 0, "momentum_buffer", "x"),
    "no momentum": drop("optimizer", "param_groups", 0, "momentum"),
    "sums of another shape": put("totals", "sums", OTHER),
    "a policy of another shape": put("policy", "selection_logits", OTHER),
    "no outer steps": drop("learning"),
    "outer steps of text": put("learning", "x"),
    "outer steps without an optimizer": drop("learning", "optimizer"),
    "an average of nothing": put("average", {}),
}


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after the seventh of its nine steps."""
    run = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(Interrupted):
        StoppingTrainer(built(config(run)), 7).fit()
    return run


def config(run: Path) -> TrainConfig:
    return settings(run, ema=0.9, eval_checkpoint="best")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line."""
    run = tmp_path_factory.mktemp("runs") / "run"
    options = ["--epochs=1", "--augment.method=base", "--batch_size=512", "--logger=none", "--device=cpu"]
    assert main(["train", *options, f"--out={run}"]) == 0
    return run


def changed(run: Path, folder: Path, name: str, change: Change) -> Path:
    """A copy of a run with another checkpoint."""
    shutil.copytree(run, folder / "run")
    path = folder / "run" / "checkpoints" / name
    save_torch(path, change(load_torch(path)))
    path.with_name("previous.pt").unlink(missing_ok=True)
    return folder / "run"


def assert_refused(run: Path, name: str) -> None:
    with pytest.raises(UserError, match=name) as caught:
        Trainer(built(dataclasses.replace(config(run), resume=True))).fit()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [*ANYWHERE, *FIELDS, *STATE])
def test_a_checkpoint_to_resume_from(half: Path, tmp_path: Path, change: str) -> None:
    assert_refused(changed(half, tmp_path, "last.pt", (ANYWHERE | FIELDS | STATE)[change]), "checkpoint")


@pytest.mark.parametrize("change", [*ANYWHERE, *FIELDS])
def test_the_best_weights_at_the_end_of_a_run(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(RunDirectory, "keep_best", lambda *_: None)  # no epoch to come is better
    assert_refused(changed(half, tmp_path, "best.pt", (ANYWHERE | FIELDS)[change]), "best.pt")


@pytest.mark.parametrize("weights", ["best", "last"])
@pytest.mark.parametrize("change", [*ANYWHERE, *FIELDS])
def test_the_weights_to_evaluate(
    ended: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], weights: str, change: str
) -> None:
    run = changed(ended, tmp_path, f"{weights}.pt", (ANYWHERE | FIELDS)[change])
    assert f"{weights}.pt" in fails(["evaluate", str(run), f"--weights={weights}", "--device=cpu"], capsys)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"mean": 1, "std": 2}', '{"mean": ["x"], "std": [1]}', '{"mean": [], "std": []}']
)
def test_the_statistics_to_evaluate_with(
    ended: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    run = changed(ended, tmp_path, "last.pt", lambda state: state)
    (run / "split.json").write_text(content)
    assert "split.json" in fails(["evaluate", str(run), "--weights=last", "--device=cpu"], capsys)


@pytest.mark.parametrize("change", ANYWHERE)
def test_weights_by_their_path(tmp_path: Path, change: str) -> None:
    model, path = build("small-cnn", 5), tmp_path / "weights.pt"
    save_torch(path, ANYWHERE[change]({"model": model.state_dict()}))
    with pytest.raises(ModelError, match=r"weights\.pt") as caught:
        build("small-cnn", 5, pretrained=str(path))
    assert "\n" not in str(caught.value)
