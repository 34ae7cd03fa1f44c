"""Old names of settings and methods are read wherever settings come from."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from madao.cli.compare_arguments import read_plan
from madao.cli.train import read_config
from madao.config.aliases import METHODS, SETTINGS, current_record
from madao.config.train_config import NOT_OPTIONS, TrainConfig, from_dict, to_dict
from madao.errors import UserError
from madao.experiments.table import read_runs, run_path
from madao.report.run import read_run
from madao.training.run.directory import run_directory
from tests.helpers.run_directories import write_run

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

# A value other than the default.
VALUES: dict[str, Any] = {
    "augment.condition": "image",
    "augment.start": 0.25,
    "augment.variation": 0.5,
    "augment.without": ["Invert"],
    "data.images": 40,
    "data.memory": 3.0,
    "data.planted": "shear",
    "data.validation": 0.25,
    "outer.memory": 5,
    "outer.mode": "train",
    "outer.pull": 0.5,
    "task.splits": 2,
    "tensorboard": False,
    "test_with": "best",
}
NOW = {"tensorboard": "none"}
"""The values of today, where they differ."""


def value(config: TrainConfig, name: str) -> Any:
    found: Any = to_dict(config)
    for part in name.split("."):
        found = found[part]
    return found


def nested(name: str, given: Any) -> dict[str, Any]:
    section, _, inner = name.partition(".")
    return {section: {inner: given}} if inner else {section: given}


def test_there_is_a_value_to_try_each_alias_with() -> None:
    assert VALUES.keys() == SETTINGS.keys()


@pytest.mark.parametrize("old", SETTINGS)
def test_an_old_name_is_read_from_every_place_that_settings_come_from(old: str, tmp_path: Path) -> None:
    now, given = SETTINGS[old], VALUES[old]
    expected = NOW.get(old, given)
    assert value(TrainConfig(), now) != expected
    file, variants = tmp_path / "settings.yaml", tmp_path / "variants.yaml"
    file.write_text(yaml.safe_dump(nested(old, given)))
    variants.write_text(yaml.safe_dump({"mine": {old: given}}))
    word = given if isinstance(given, str) else json.dumps(given)
    found = {
        "a config.yaml": from_dict(nested(old, given)),
        "--config": read_config(["--config", str(file)]),
        "--variants": read_plan(["--methods", "mine", "--variants", str(variants)]).methods["mine"],
    }
    if now in NOT_OPTIONS:
        for flag in ([f"--{old}={word}"], [f"--{old}", word]):
            with pytest.raises(UserError) as caught:
                read_config(flag)
            remedy = str(caught.value).split("'")[1]
            found[f"the remedy for {flag}"] = read_config(["--config", remedy])
    else:
        found |= {"a flag": read_config([f"--{old}={word}"]), "a flag, a word": read_config([f"--{old}", word])}
    assert {place: value(config, now) for place, config in found.items()} == dict.fromkeys(found, expected)


@pytest.mark.parametrize(
    ("flags", "now"),
    [
        (["--tensorboard"], "tensorboard"),
        (["--tensorboard", "--epochs", "3"], "tensorboard"),
        (["--tensorboard", "photos/"], "tensorboard"),
        (["--tensorboard=true"], "tensorboard"),
        (["--tensorboard", "no"], "none"),
        (["--logger", "tensorboard"], "tensorboard"),
        (["--logger=none"], "none"),
    ],
)
def test_a_switch_of_before_is_a_choice_today(flags: list[str], now: str) -> None:
    assert read_config(["--logger", "mlflow", *flags]).logger == now


@pytest.mark.parametrize(("old", "now"), METHODS.items())
def test_an_old_method_is_the_one_of_today(old: str, now: str, tmp_path: Path) -> None:
    variants = tmp_path / "variants.yaml"
    variants.write_text(f"mine: {{augment.method: {old}}}\n")
    assert from_dict({"augment": {"method": old}}).augment.method == now
    assert read_config(["--augment.method", old]).augment.method == now
    plan = read_plan(["--methods", f"{old},mine", "--variants", str(variants)])
    assert {name: config.augment.method for name, config in plan.methods.items()} == {now: now, "mine": now}


def test_a_run_under_old_names_is_shown_under_those_of_today(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", "base")
    (path / "config.yaml").write_text("augment: {method: standard, start: 0.2}\ntest_with: best\n")
    run = read_run(path)
    assert run.method == "base"
    assert (run.setting("augment.init_magnitude"), run.setting("eval_checkpoint")) == (0.2, "best")


@pytest.mark.parametrize(("old", "now"), METHODS.items())
def test_the_cells_of_an_older_comparison_are_found(old: str, now: str, tmp_path: Path) -> None:
    write_run(tmp_path / old / "0", now)
    assert run_path(tmp_path, now, 1) == tmp_path / old / "1"
    for methods in (None, [now]):
        assert read_runs(tmp_path, methods)[now][0].path == tmp_path / old / "0"


def test_published_records_are_read_under_the_names_of_today() -> None:
    paths = [*RESULTS.glob("paper-*.json"), RESULTS / "moco-cifar10.json"]
    assert len(paths) >= 7
    for path in paths:
        before = json.loads(path.read_text())
        found = current_record(before)
        assert found["command"] == before["command"]
        for name, cell in found["cells"].items():
            settings = {**found["settings"], **cell["settings"]}
            assert not {*settings} & {*SETTINGS}
            assert settings["augment.method"] not in METHODS
            assert name.split(" ")[0] not in METHODS
        assert {name.split(" ")[0] for name in found["cells"]} >= {"base"}
        assert len(found["cells"]) == len(before["cells"])


def test_only_whole_names_of_methods_are_old() -> None:
    cells: dict[str, Any] = {"madao fast 0": {}, "madao 0": {}, "standard 1": {}, "base 1": {}}
    # A variant was called `base`, as a method is today: both cells stay.
    assert [*current_record({"settings": {}, "cells": cells})["cells"]] == [
        "madao fast 0",
        "learned 0",
        "standard 1",
        "base 1",
    ]


def test_a_folder_with_a_method_under_two_names_is_refused(tmp_path: Path) -> None:
    for name in ("standard", "base"):
        write_run(tmp_path / name / "0", "base")
    with pytest.raises(UserError, match="holds standard and base"):
        read_runs(tmp_path)


def test_lists_are_added_to_under_old_names() -> None:
    assert read_config(["--augment.without+=Invert", "--out=x"]).augment.exclude == ["Invert"]


def test_resume_without_a_name_finds_a_run_under_its_old_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "digits-small-cnn-madao-0").mkdir(parents=True)
    name = run_directory(TrainConfig(resume=True), "digits", "small-cnn").name
    assert name == "digits-small-cnn-madao-0"
    assert run_directory(TrainConfig(), "digits", "small-cnn").name == "digits-small-cnn-learned-0"


def test_a_run_of_a_version_without_a_budget_keeps_what_it_had() -> None:
    outer = {"every": 10, "lr": 0.03, "batch_size": None, "train_batch_size": None}
    assert from_dict({"outer": outer}).outer.budget == 0
    assert from_dict({"outer": {**outer, "budget": 0.2}}).outer.budget == 0.2
    assert from_dict({"outer": {"every": 10}}).outer.budget == TrainConfig().outer.budget > 0
