"""The paper's tables and figures, from records."""

import hashlib
import json
import re
import sys
from pathlib import Path

import pytest

from madao.cli.compare_arguments import read_plan
from madao.cli.recipes import recipe_path
from madao.cli.train import read_config
from madao.config.aliases import current_record
from madao.config.train_config import to_dict
from madao.experiments.published import record
from madao.experiments.table import read_runs, run_path
from madao.report.run import dotted
from tests.helpers.run_directories import write_run
from tests.helpers.scripts import ROOT, module

TOOLS = {"entries", "convert", "cell_queue", "run_queue", "train_cell"}
"""Neither a table nor a figure."""
ENTRIES = sorted(path for path in (ROOT / "benchmarks" / "paper").glob("*.py") if path.stem not in TOOLS)


def test_the_papers_tables_and_figures_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "paper"))
    names = {"table1", "table2", "table3", "figure2", "figure3", "figure5", "figure6", "figure7", "untrained"}
    assert {path.stem for path in ENTRIES} == names | {"ablations"}
    for path in ENTRIES:
        script = module(path, monkeypatch)
        text = script.rebuild(tmp_path, tmp_path)
        assert "missing" in text or "no run of it is there" in text
        for entry in script.ENTRIES[-1:]:
            (command,) = entry.commands(tmp_path, "data")
            plan = read_plan(command[1:])
            assert [*plan.methods] == [*entry.methods]
            assert plan.seeds == [0, 1, 2]
            if entry.epochs is not None:  # all of the schedule is as much shorter
                assert (plan.base.epochs, plan.base.outer.warmup) == (60, 6)
    forty = module(ROOT / "benchmarks" / "paper" / "entries.py", monkeypatch).TABLE1[3]
    plan = read_plan(forty.commands(tmp_path, "data")[0][1:])
    assert (plan.base.model.name, plan.base.epochs, plan.base.outer.warmup) == ("wrn-28-10", 40, 4)
    assert not [*tmp_path.iterdir()]


RECORDS = sorted((ROOT / "benchmarks" / "results").glob("paper-*.json"))
# How it ran, how often it was looked at, and what is searched for: not what a cell computes.
_HOW = {"evaluate_every", "augment.magnitude"}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_published_cells_stay_as_they_are_when_others_are_added(path: Path) -> None:
    published = current_record(json.loads(path.read_text()))
    made = {"command": published["command"], "jobs": published["jobs"]}
    again = json.loads(record({}, made, {}, published))
    assert again["cells"] == published["cells"]
    later = json.loads(record({}, {"command": "madao compare another", "jobs": 99}, {}, published))
    assert later["cells"] == {name: {**made, **cell} for name, cell in published["cells"].items()}


def test_published_cells_have_the_settings_that_their_commands_would_give_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "paper"))
    entries = [entry for path in ENTRIES for entry in module(path, monkeypatch).ENTRIES]
    compared, there = set(), set()
    for entry in entries:
        plan = read_plan(entry.commands(tmp_path, "data")[0][1:])
        path = entry.path(ROOT / "benchmarks" / "results")
        published = current_record(json.loads(path.read_text()) if path.exists() else {"cells": {}})
        for name, cell in published["cells"].items():
            there.add((path.name, name))
            method = name.rsplit(" ", 1)[0]
            if method not in plan.methods:
                continue
            asked = dotted(to_dict(plan.methods[method]))
            learns = asked["augment.method"] == "learned"
            if "policy_sha256" in cell:  # of a file, which may have become another since
                content = (ROOT / asked["augment.method"]).read_bytes()
                assert cell["policy_sha256"] == hashlib.sha256(content).hexdigest()
            asked["augment.method"] = Path(asked["augment.method"]).name  # records have no folders
            asked["augment.padding"] = (
                4 if asked["augment.padding"] is None else asked["augment.padding"]
            )  # 32 px or more
            for key, value in {**published["settings"], **cell["settings"]}.items():
                if key in _HOW or key.startswith("speed.") or (key.startswith("outer.") and not learns):
                    continue
                assert asked[key] == value, f"{path.name}, {name}: {key}"
            compared.add((path.name, name))
    assert {name for name, _ in there} == {path.name for path in RECORDS}
    assert compared == there


def test_the_best_setting_is_a_recipe_and_what_it_says_of_itself_is_in_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = module(ROOT / "benchmarks" / "paper" / "ablations.py", monkeypatch)
    results, name = ROOT / "benchmarks" / "results", "cifar10-wrn-28-2-plus"
    published = current_record(json.loads((results / "paper-cifar10-wrn-28-2-60.json").read_text()))
    recipe = dotted(to_dict(read_config(["--recipe", name])))
    for seed in range(6):
        trained = {**published["settings"], **published["cells"][f"same-loss {seed}"]["settings"]}
        trained = {key: value for key, value in trained.items() if key not in _HOW and not key.startswith("speed.")}
        assert {key: recipe[key] for key in trained} == trained
    assert published["search"]["magnitude"] == 0.06
    header = " ".join(line[1:].strip() for line in recipe_path(name).read_text().splitlines() if line.startswith("#"))
    tables = [table.splitlines() for table in script.rebuild(results, ROOT).split("\n\n")]

    def cells(table: list[str], title: str = "same-loss (cifar10-wrn-28-2-plus) |") -> list[str]:
        line = next(line for line in table if title in line)
        return [cell.split(" [")[0].strip() for cell in line.split("|")][2:-1]

    sixty, two_hundred = cells(tables[0])
    assert f"test error is {sixty} %, the lowest" in header
    assert f"six seeds have {two_hundred} %, again the lowest" in header
    tuned, trivial, uniform = (cell.removeprefix("−") for cell in cells(tables[1])[:3])
    told = f"{tuned} points below tuned RandAugment, {trivial} below TrivialAugment and {uniform} below the uniform"
    assert told in header
    tuned, trivial = (cell.removeprefix("−") for cell in cells(tables[3])[:2])
    told = (
        f"{tuned} points below tuned RandAugment, and {trivial} below TrivialAugment, a difference that does not exceed"
    )
    assert told in header
    assert f"base augmentation ({cells(tables[0], 'base augmentation')[0].split()[0]})" in header
    for words, title in {
        "base augmentation ": "| base augmentation (crop, flip, Cutout) |",
        "(uniform ": "| uniform policy |",
        "TrivialAugment ": "| TrivialAugment |",
        "AutoAugment ": "| AutoAugment |",
        "tuned RandAugment ": "| RandAugment tuned |",
    }.items():
        assert f"{words}{cells(tables[0], title)[1].split()[0]}" in header
    assert "0.06" in header


TITLES = {
    "base": "base augmentation",
    "uniform": "uniform policy",
    "trivialaugment": "TrivialAugment",
    "randaugment": "RandAugment tuned",
    "autoaugment-cifar10": "AutoAugment",
    "learned": "learned, the paper's method",
    "deflated": "learned, `Deflated` only",
    "same-loss": "learned, `same-loss`",
}
"""Names of methods on the page "When does learning pay?"."""


def rows_of(document: Path) -> dict[str, list[str]]:
    """Return the rows of tables by their first cell, without brackets and bold; of rows with equal names the first."""
    found: dict[str, list[str]] = {}
    for line in document.read_text().splitlines():
        if line.startswith("| "):
            title, *cells = [re.sub(r" \(.*?\)|\*", "", cell).strip() for cell in line.split("|")[1:-1]]
            found.setdefault(title, cells)
    return found


def test_the_comparison_on_cifar10_has_the_numbers_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "paper" / "ablations.py", monkeypatch)
    page, results = ROOT / "docs" / "when-learning-pays.md", ROOT / "benchmarks" / "results"
    rows = {title: cells for title, cells in rows_of(page).items() if title in TITLES.values()}
    assert [*rows] == [*TITLES.values()]
    for column, entry in zip((0, 2), script.ENTRIES, strict=True):
        cells = entry.cells(results)
        names = {method: script.ROWS[method] for method in TITLES}
        table = script.paired(entry, results, names, [*TITLES][:-1]).splitlines()
        columns = {name.strip().removeprefix("− "): place for place, name in enumerate(table[0].split("|"))}
        learned = next(line for line in table if line.startswith(f"| {names['same-loss']} |")).split("|")
        for method, title in TITLES.items():
            assert rows[title][column] == entry.told(method, cells).split(" [")[0], title
            told = learned[columns[names[method]]].strip() if names[method] in columns else "–"
            assert rows[title][column + 1] == ("" if method == "same-loss" else told), title
    assert rows_of(ROOT / "README.md")["CIFAR-10, no shift"][:3] == [
        f"{rows[TITLES[method]][2].split(' ')[0]} %" for method in ("base", "uniform", "same-loss")
    ]


def test_differences_are_those_of_seeds_that_both_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = module(ROOT / "benchmarks" / "paper" / "entries.py", monkeypatch)
    for method, errors in {"learned": [0.040, 0.050, 0.060], "uniform": [0.041, 0.053], "base": [0.09]}.items():
        for seed, error in enumerate(errors):
            write_run(run_path(tmp_path / "runs", method, seed), method, seed, epochs=3, error=error)
    entry = entries.Entry("cifar10-wrn-28-2", ["learned", "uniform", "base"], epochs=3)
    names = {"base": "crops", "uniform": "all alike", "learned": "learned", "randaugment": "one strength"}
    references = ["uniform", "base", "randaugment"]
    assert entries.paired(entry, tmp_path, names, references) == ""
    entry.path(tmp_path).write_text(record(read_runs(tmp_path / "runs"), {}, {}))
    # −0.1 and −0.3: t for 97.5 % and one degree of freedom is 12.7062, the error of the mean 0.1.
    assert entries.paired(entry, tmp_path, names, references).splitlines() == [
        "| cifar10-wrn-28-2-3: test error, points ± 95 % | − all alike | − crops |",
        "| --- | --- | --- |",
        "| learned | −0.20 ± 1.27 | – |",
    ]
    assert entries.paired(entry, tmp_path, names, ["randaugment"]) == ""
    assert "validation error" in entries.paired(entry, tmp_path, names, references, "validation_error")


def test_costs_are_those_of_all_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = module(ROOT / "benchmarks" / "paper" / "entries.py", monkeypatch)
    costs = {"learned 0": (3.0, 1000), "learned 1": (5.0, 2600), "base 0": (2.0, 700), "base 1": (2.5, 712)}
    cells = {
        name: {"seed": int(name[-1]), "minutes": minutes, "memory_mib": memory}
        for name, (minutes, memory) in {**costs, "uniform 0": (None, None)}.items()
    }
    columns = {"base": "crops", "learned": "learned", "uniform": "all"}
    entry = entries.Entry("cifar10-wrn-28-2", [*columns])
    assert entries.cost_table([entry], tmp_path, columns) == ""
    entry.path(tmp_path).write_text(json.dumps({"settings": {"epochs": 200, "batch_size": 128}, "cells": cells}))
    assert entries.cost_table([entry], tmp_path, columns).splitlines() == [
        "| minutes, MiB | crops | learned | all |",
        "| --- | --- | --- | --- |",
        "| cifar10-wrn-28-2 | 2.2, 712 | 4.0, 1000 to 2600 | – |",
    ]


def test_a_recipe_that_fails_does_not_keep_the_next_from_being_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = module(ROOT / "benchmarks" / "paper" / "entries.py", monkeypatch)
    for codes, trained, expected in (([2, 0, 1], 3, 2), ([2, 130, 0], 2, 130), ([0, 0, 0], 3, 0)):
        recipes: list[str] = []

        def ended(command: list[str], recipes: list[str] = recipes, codes: list[int] = codes) -> int:
            recipes.append(command[2])
            return codes[len(recipes) - 1]

        monkeypatch.setattr(script, "madao", ended)
        monkeypatch.setattr(sys, "argv", ["table1.py", "--run", "--results", str(tmp_path)])
        with pytest.raises(SystemExit) as end:
            script.main("", script.TABLE1[:3], lambda results, output: "")
        assert (len(recipes), end.value.code) == (trained, expected)


def test_the_papers_tables_and_figures_are_rebuilt_from_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "paper"))
    entries = module(ROOT / "benchmarks" / "paper" / "entries.py", monkeypatch)
    entry, errors = entries.TABLE1[0], {0: 0.040, 1: 0.050, 2: 0.060}
    for seed, error in errors.items():
        write_run(run_path(tmp_path / "runs", "learned", seed), "learned", seed, epochs=3, error=error)
    write_run(run_path(tmp_path / "runs", "uniform", 1), "uniform", 1, epochs=3, error=0.055)
    write_run(run_path(tmp_path / "runs", "s60", 0), "learned", 0, epochs=3, error=0.045)
    results = tmp_path / "results"
    results.mkdir()
    rehearsal = record(read_runs(tmp_path / "runs", ["learned", "uniform"]), {}, {})
    entry.path(results).write_text(rehearsal)
    with pytest.raises(SystemExit, match="200"):
        entry.cells(results)
    steps = record(read_runs(tmp_path / "runs", ["s60"]), {}, {})
    short = results / "paper-cifar10-wrn-28-2-60.json"
    for path, text, epochs in ((entry.path(results), rehearsal, 200), (short, steps, 60)):
        path.write_text(text.replace('"epochs": 3,', f'"epochs": {epochs},'))
    # t for 97.5 % and 2 degrees of freedom is 4.302653: 4.302653 · 1 % / √3.
    table = module(ROOT / "benchmarks" / "paper" / "table1.py", monkeypatch).rebuild(results, tmp_path)
    assert "| 5.00 ± 2.48 (paper: 4.6) | 5.50 [1 of 3 seeds] | missing |" in table
    assert "\n| cifar10-wrn-28-10, 40 epochs | missing | – | – | – |" in table  # and no number of the paper's
    # Three epochs of three seconds.
    assert "\n| cifar10-wrn-28-2 | – | – | – | – | 0.1, 700 | 0.1, 700 | – | – | – |" in table
    untrained = module(ROOT / "benchmarks" / "paper" / "untrained.py", monkeypatch).rebuild(results, tmp_path)
    assert "| learned policy | 5.00 ± 2.48 | −0.50 | 4.6 |" in untrained
    assert entries.edge(entries.error(entry.cells(results)["learned"]), 1) == pytest.approx(0.06)
    (seeds, methods), *_ = [(s, m) for s, m in entry.missing(results).items() if "uniform" in m]
    assert (seeds, methods) == ((0, 2), ["uniform"])
    said = module(ROOT / "benchmarks" / "paper" / "figure3.py", monkeypatch).rebuild(results, tmp_path / "figures")
    assert said.endswith("missing: 1, 5, 10, 30, 120")
    for name in ("figure5", "figure6"):
        module(ROOT / "benchmarks" / "paper" / f"{name}.py", monkeypatch).rebuild(results, tmp_path / "figures")
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {f"paper-figure{number}.{kind}" for number in (3, 5, 6) for kind in ("png", "svg")}
