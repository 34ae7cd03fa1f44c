"""`madao compare`: cells are trained once, go on after anything, and end in one table."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from madao.cli import main
from madao.cli.compare_arguments import read_plan
from madao.experiments.jobs import JobPool
from madao.experiments.table import read_runs
from tests.helpers.command_line import fails

QUICK = ["--epochs", "1", "--augment.crop", "none", "--logger", "none", "--device", "cpu", "--batch_size", "128"]


def compare(out: Path, *arguments: str) -> list[str]:
    return ["compare", "--out", str(out), *QUICK, *arguments]


@pytest.mark.parametrize(
    "content",
    ["no json", "3", "[]", '""', "null", "{}", '{"name": "x"}', '{"cells": {"a": {"seed": 0}}, "settings": {}}'],
)
def test_a_file_that_is_no_record_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    record = tmp_path / "notes.txt"
    record.write_text(content)
    out = tmp_path / "cells"
    arguments = compare(out, "--methods", "base", "--export", str(record))
    assert "notes.txt exists and is no record" in fails(arguments, capsys)
    assert not out.exists()
    assert record.read_text() == content


def test_what_cannot_be_written_is_said_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "cells"
    arguments = compare(out, "--methods", "base", "--export", str(tmp_path / "file" / "record.json"))
    assert str(tmp_path / "file") in fails(arguments, capsys)
    assert not (out / "base").exists()


def written(out: Path) -> dict[Path, int]:
    """When each cell's result was written."""
    return {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods over two seeds, one of them with a magnitude that is searched for."""
    out = tmp_path_factory.mktemp("compare") / "cells"
    arguments = ["--methods", "base,randaugment", "--seeds", "2", "--search.trials", "2", "--jobs", "2"]
    export = ["--export", str(out.parent / "record.json")]
    assert main(compare(out, *arguments, *export)) == 0
    return out


def test_the_magnitude_is_that_of_the_lowest_validation_error(trained: Path) -> None:
    search = json.loads((trained / "search.json").read_text())
    errors = {trial["magnitude"]: trial["validation_error"] for trial in search["trials"]}
    assert len(errors) == 2
    for magnitude, error in errors.items():
        result = json.loads((trained / "randaugment" / f"{magnitude:g}" / "0" / "result.json").read_text())
        assert result["validation_error"] == error
    assert search["magnitude"] == min(errors, key=lambda magnitude: errors[magnitude])
    # The other one was not trained over all seeds.
    assert len(written(trained)) == 2 + 1 + 2
    cells = read_runs(trained)
    assert {seed: run.config["augment"]["magnitude"] for seed, run in cells["randaugment"].items()} == dict.fromkeys(
        (0, 1), search["magnitude"]
    )


def test_the_table_holds_the_test_errors(trained: Path) -> None:
    rows = {row["method"]: row for row in json.loads((trained / "table.json").read_text())["rows"]}
    for method, runs in read_runs(trained).items():
        assert rows[method]["errors"] == {str(seed): run.result["test_error"] for seed, run in runs.items()}
    assert rows["base"]["to_base"] is None
    assert rows["randaugment"]["to_base"]["seeds"] == 2
    assert re.search(r"\| base \| 2 \| [\d.]+ ± [\d.]+ \| – \|", (trained / "table.md").read_text())


def test_the_record_can_be_published(trained: Path) -> None:
    text = (trained.parent / "record.json").read_text()
    record = json.loads(text)
    assert str(trained.parent) not in text
    assert record["cells"].keys() == {"base 0", "base 1", "randaugment 0", "randaugment 1"}
    assert record["command"].startswith("madao compare --out cells --epochs 1")
    assert len(record["search"]["trials"]) == 2


def test_the_same_command_trains_nothing_and_says_the_same(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    before, table = written(trained), (trained / "table.json").read_text()
    arguments = ["--methods", "base,randaugment", "--seeds", "2", "--search.trials", "2"]
    assert main(compare(trained, *arguments)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("base, randaugment with seeds 0, 1: 4 trainings, 4 of them finished\n")
    assert "base         2" in printed
    assert "− base" in printed
    assert "− randaugment" in printed
    assert "…" not in printed, "a line too long is better than one cut off"
    assert written(trained) == before
    assert (trained / "table.json").read_text() == table


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--methods", "base,uniform", "--seeds", "2"], "base, uniform with seeds 0, 1: 4 trainings\n"),
        (["--methods", "base", "--seeds", "2,"], "base with seed 2: 1 training\n"),
        (
            ["--methods", "randaugment", "--seeds", "5,7", "--search.trials", "4"],
            "randaugment with seeds 5, 7: 2 trainings; 4 magnitudes to try for randaugment\n",
        ),
        (
            ["--methods", "randaugment", "--seeds", "1", "--search.seeds", "2"],
            "randaugment with seed 0: 1 training; 3 magnitudes, 2 trainings each, to try for randaugment\n",
        ),
        (["--methods", "randaugment", "--search.trials", "0"], "randaugment with seeds 0, 1, 2: 3 trainings\n"),
    ],
)
def test_it_says_what_will_be_trained(
    given: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(JobPool, "run", lambda *_: None)
    main(compare(tmp_path / "cells", *given))
    assert capsys.readouterr().out.startswith(expected)


def test_other_settings_are_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = fails(compare(trained, "--methods", "uniform", "--epochs", "2"), capsys)  # also of what is not there yet
    assert "the comparison in" in message
    assert "was started with --epochs 1, not --epochs 2; all its cells share this setting" in message
    assert "was started with --data.size by default, not --data.size 9" in fails(
        compare(trained, "--methods", "uniform", "--data.size", "9"), capsys
    )
    assert "choose another --out" in message
    message = fails(compare(trained.parent, "--methods", "base"), capsys)
    assert "holds no comparison" in message


def photos(path: Path, seed: int) -> list[str]:
    images = np.random.default_rng(seed).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    path.parent.mkdir()
    np.savez(path, x_train=images, y_train=np.arange(40) % 2, x_test=images[:4], y_test=np.arange(4) % 2)
    return ["--data.root", str(path)]


def test_other_images_of_the_same_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(JobPool, "run", lambda *_: None)  # what would be trained does not matter
    one, other = photos(tmp_path / "a" / "photos.npz", 0), photos(tmp_path / "b" / "photos.npz", 1)
    arguments = ["compare", *QUICK, "--methods", "base", "--seeds", "1"]
    assert main([*arguments, *one]) == 0
    capsys.readouterr()
    message = fails([*arguments, *other], capsys)
    assert "the images differ from those that the comparison in runs/compare-photos was started with" in message
    assert "another --out" in message
    assert "differ from those" in fails([*arguments, "--methods", "uniform", *other], capsys)
    (tmp_path / "a").rename(tmp_path / "moved")
    assert main([*arguments, "--data.root", "moved/photos.npz"]) == 0
    # A variant's own images count, too.
    (tmp_path / "mine.yaml").write_text("mine: {data.root: moved/photos.npz}\n")
    own = ["compare", *QUICK, "--variants", "mine.yaml", "--methods", "mine", "--out", "own"]
    assert main(own) == 0
    capsys.readouterr()
    (tmp_path / "mine.yaml").write_text("mine: {data.root: b/photos.npz}\n")
    assert "the images of mine differ from those" in fails(own, capsys)


def test_a_variant_that_changes_its_meaning_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variants = tmp_path / "variants.yaml"
    variants.write_text("mine: {augment: {method: base, cutout: 2}}\n")
    arguments = compare(tmp_path / "out", "--methods", "mine", "--variants", str(variants), "--seeds", "1")
    assert main(arguments) == 0
    assert yaml.safe_load((tmp_path / "out/mine/0/config.yaml").read_text())["augment"]["cutout"] == 2
    capsys.readouterr()
    variants.write_text("mine: {augment: {method: base, cutout: 3}}\n")
    assert "was started with augment.cutout = 2, not 3" in fails(arguments, capsys)


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variants = tmp_path / "variants.yaml"
    variants.write_text("broken: {augment.method: base, data.root: nowhere, data.name: folder}\n")
    arguments = ["--methods", "broken,base", "--variants", str(variants), "--seeds", "1"]
    assert main(compare(tmp_path / "out", *arguments)) == 2
    printed = capsys.readouterr()
    assert "1 cell missing; broken 0: there is no folder nowhere" in printed.err
    assert re.search(r"broken +0 of 1 .*\nbase +1 ", printed.out)


def test_what_fails_everywhere_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--methods", "base,uniform", "--model.name", "resnet19"]
    assert main(compare(tmp_path / "out", *arguments)) == 2
    printed = capsys.readouterr()
    assert printed.err.count("failed: unknown model 'resnet19'") == 2
    assert "6 cells missing; base 0, uniform 0: unknown model" in printed.err


def test_a_wrong_folder_is_told_once_and_leaves_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--methods", "base,uniform", "--data.root", "nowhere", "--data.name", "folder"]
    assert fails(compare(tmp_path / "out", *arguments), capsys).startswith("madao: there is no folder nowhere;")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_it_goes_on_after_ctrl_c_and_after_a_kill(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [*compare(out, "--methods", "base", "--seeds", "2", "--jobs", "2"), "--epochs", "40"]

    def interrupted(number: signal.Signals, epochs: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "madao", *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        while process.poll() is None and reached(out) < epochs:
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(command, process.returncode, stderr=errors)

    stopped = interrupted(signal.SIGINT, 2)
    assert stopped.returncode == 130, stopped.stderr
    said = stopped.stderr.strip().splitlines()
    assert said[0] == "stopping, after every training's step and checkpoint; Ctrl-C again stops immediately"
    assert said[-1] == "madao: stopped; checkpoints are written: run the same command to resume"
    first = reached(out)
    assert 2 <= first < 40
    killed = interrupted(signal.SIGKILL, first + 2)
    assert killed.returncode == -signal.SIGKILL
    # The cells end by themselves once nobody waits for them, and the next command waits for that.
    assert main(arguments) == 0
    for seed in ("0", "1"):
        rows = (out / "base" / seed / "metrics.csv").read_text().splitlines()[1:]
        assert [int(row.split(",")[0]) for row in rows] == [*range(1, 41)]
    (row,) = json.loads((out / "table.json").read_text())["rows"]
    assert (row["missing"], len(row["errors"])) == ([], 2)


def reached(out: Path) -> int:
    """The epoch that both cells have come to."""
    tables = [out / "base" / seed / "metrics.csv" for seed in ("0", "1")]
    return min(len(path.read_text().splitlines()) - 1 if path.exists() else 0 for path in tables)


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "typo.yaml").write_text("mine: {outer.solvr: identity}\n")
    (tmp_path / "taken.yaml").write_text("learned: {outer.solver: identity}\n")
    (tmp_path / "list.yaml").write_text("- a\n")
    for arguments, message in (
        (["--methods", "unifrm"], "unknown method 'unifrm'; did you mean 'uniform'?"),
        (["--methods", "a/policy.json"], "add it to --variants"),
        (["--methods", ","], "--methods must name at least one"),
        (["--seeds", "many"], "--seeds must be a number of seeds (3) or a list of them (0,1,7), got 'many'"),
        (["--seeds", "0"], "--seeds must be a number of seeds"),
        (["--seed", "3"], "use --seeds"),
        (["--augment.method=madao"], "use --methods"),
        (["--augment.magnitude", "0.2"], "--search.trials 0"),
        (["--devices", "2"], "one device"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--search.trials", "-1"], "--search.trials must be at least 0"),
        (["--lr", "1"], "did you mean '--optimizer.lr'?"),
        (["--variants", str(tmp_path / "none.yaml")], "none.yaml: no such file"),
        (["--variants", str(tmp_path / "typo.yaml")], "variant mine: unknown option '--outer.solvr'; did you mean"),
        (["--variants", str(tmp_path / "taken.yaml")], "'learned' cannot name a variant"),
        (["--variants", str(tmp_path / "list.yaml")], "each line needs a name and settings"),
    ):
        assert message in fails(["compare", *arguments], capsys), arguments


def test_help_shows_its_own_options_and_names_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--help"]) == 0
    text = capsys.readouterr().out
    for part in (
        "--methods",
        "--seeds",
        "--jobs",
        "--search.trials",
        "All options of madao train",
        "outer.every: 60",
    ):
        assert part in text
    assert "--optimizer.lr" not in text


def test_a_plan_is_the_recipe_with_its_methods(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("s60: {outer.every: 60}\ntheirs: {augment.method: trivialaugment, epochs: 5}\n")
    arguments = ["--recipe", "cifar10-wrn-28-2", "--variants", str(tmp_path / "mine.yaml"), "--seeds", "4,2"]
    plan = read_plan(arguments)
    assert [*plan.methods] == ["base", "uniform", "randaugment", "learned", "s60", "theirs"]
    assert plan.folder == Path("runs/compare-cifar10-wrn-28-2")
    assert plan.seeds == [4, 2]
    assert plan.methods["s60"].outer.every == 60
    assert plan.methods["s60"].augment.method == "learned"
    assert plan.methods["learned"].outer.every == 30
    assert (plan.methods["theirs"].augment.method, plan.methods["theirs"].epochs) == ("trivialaugment", 5)
    cell = plan.run_config("randaugment", 4, 0.25)
    assert (cell.augment.magnitude, cell.seed, cell.resume) == (0.25, 4, True)
    assert cell.out == str(plan.folder / "randaugment" / "0.25" / "4")
