"""What is published of a table: small, whole, and nothing of the machine."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from madao.config.train_config import DataConfig, OuterConfig
from madao.experiments.published import LARGEST, record, settings, without_paths
from madao.experiments.table import read_runs, run_path
from tests.helpers.run_directories import write_run


def recorded(folder: Path) -> tuple[str, dict[str, Any]]:
    cells = read_runs(folder)
    text = record(cells, {"command": "madao compare"}, {})
    return text, json.loads(text)


def test_a_record_has_everything_and_no_path(tmp_path: Path) -> None:
    data = DataConfig(name="digits", root=str(tmp_path / "data"))
    for seed in (0, 1):
        write_run(run_path(tmp_path, "learned", seed), "learned", seed, data=data)
        write_run(run_path(tmp_path, "s7", seed), "learned", seed, data=data, outer=OuterConfig(every=7, warmup=2))
    text, found = recorded(tmp_path)
    assert str(tmp_path) not in text
    assert "/" not in json.dumps(found["settings"])
    assert found["cells"].keys() == {"learned 0", "learned 1", "s7 0", "s7 1"}
    cell = found["cells"]["s7 1"]
    assert cell["seed"] == 1
    assert cell["settings"] == {"outer.every": 7}
    assert found["settings"]["epochs"] == 8
    assert cell["curve"]["epoch"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert cell["curve"]["validation_error"][-1] == pytest.approx(0.05, rel=0.01)
    assert {"torch", "python", "madao", "commit", "device"} <= cell["environment"].keys()
    assert (cell["minutes"] > 0, cell["memory_mib"] > 0) == (True, True)
    # The whole way of the policy for the first seed, where it ended for the others.
    assert found["cells"]["s7 0"]["policy"]["epochs"] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert cell["policy"]["epochs"] == [8]
    assert sum(cell["policy"]["selection"][0][0]) == pytest.approx(1, abs=1e-3)


def test_a_policy_that_is_a_file_is_told_by_its_digest(tmp_path: Path) -> None:
    path = write_run(run_path(tmp_path, "theirs", 0), str(tmp_path / "mine" / "policy.json"))
    assert "policy_sha256" not in recorded(tmp_path)[1]["cells"]["theirs 0"]
    (path / "policy.json").write_text("{}")  # a copy, which runs keep
    text, found = recorded(tmp_path)
    assert str(tmp_path) not in text
    assert found["cells"]["theirs 0"]["policy_sha256"] == hashlib.sha256(b"{}").hexdigest()
    write_run(run_path(tmp_path, "learned", 0))
    assert "policy_sha256" not in recorded(tmp_path)[1]["cells"]["learned 0"]


def test_a_large_table_has_fewer_points_from_first_to_last(tmp_path: Path) -> None:
    path = write_run(tmp_path / "learned" / "0", epochs=150)
    run = read_runs(tmp_path)["learned"][0]
    cells = {f"variant {number}": dict.fromkeys(range(3), run) for number in range(12)}
    text = record(cells, {}, {})
    assert len(text.encode()) <= LARGEST
    curve = json.loads(text)["cells"]["variant 0 0"]["curve"]
    assert (curve["epoch"][0], curve["epoch"][-1]) == (1, 150)
    assert 10 <= len(curve["epoch"]) < 150
    assert path.exists()
    # However often cells are added, those that are there keep their beginning, their end and enough between.
    for number in range(12, 20):
        text = record({f"variant {number}": {0: run}}, {}, {}, json.loads(text))
    assert len(text.encode()) <= LARGEST
    ways = [cell["policy"]["epochs"] for name, cell in json.loads(text)["cells"].items() if name.endswith(" 0")]
    assert {(way[0], way[-1]) for way in ways} == {(0, 150)}
    assert min(map(len, ways)) >= 6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["madao", "--data.root", "/home/me/data/", "--out=runs/a/b", "--variants", "x/y.yaml", "--seeds", "0,1"],
            "madao --data.root data --out=b --variants y.yaml --seeds 0,1",
        ),
        (["--out=/home/A B/my runs", "--data.root", "/home/A B/c=d, e/f g"], "'--out=my runs' --data.root 'f g'"),
        (["--search.storage", "postgresql://bob:secret@host"], "--search.storage URL"),
        (["--search.storage=postgresql://bob:secret@host"], "--search.storage=URL"),
        (["--search", '{"storage": "postgresql://bob:secret@host"}'], "--search URL"),
    ],
)
def test_commands_are_told_without_folders_and_passwords(words: list[str], told: str) -> None:
    assert without_paths(words) == told


def test_settings_are_those_that_count(tmp_path: Path) -> None:
    write_run(tmp_path / "policy" / "0", "base", 4)
    kept = settings(read_runs(tmp_path)["policy"][0])
    assert kept["augment.method"] == "base"
    assert not {"seed", "out", "data.root", "device"} & kept.keys()


def test_a_record_grows(tmp_path: Path) -> None:
    write_run(run_path(tmp_path / "a", "learned", 0), "learned", 0)
    write_run(run_path(tmp_path / "a", "base", 0), "base", 0, error=0.5)
    _, before = recorded(tmp_path / "a")
    write_run(run_path(tmp_path / "b", "s7", 0), "learned", 0, outer=OuterConfig(every=7, warmup=2))
    write_run(run_path(tmp_path / "b", "base", 0), "base", 0, error=0.4)
    before = {**before, "search": {"magnitude": 0.2}}
    after = json.loads(record(read_runs(tmp_path / "b"), {}, {"magnitude": 0.1}, before))
    assert after["cells"].keys() == {"learned 0", "base 0", "s7 0"}
    assert after["cells"]["base 0"]["test_error"] == 0.4
    assert (after["settings"].get("outer.every"), after["settings"]["epochs"]) == (None, 8)
    assert [after["cells"][name]["settings"]["outer.every"] for name in ("learned 0", "s7 0")] == [2, 7]
    assert after["search"] == {"magnitude": 0.1}
    kept = json.loads(record({}, {"command": "madao compare"}, {}, before))
    assert kept["search"] == {"magnitude": 0.2}
    assert kept["cells"] == before["cells"]


def test_cells_of_several_commands_say_which_made_them(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for number, method in enumerate(("base", "uniform", "learned")):
        write_run(run_path(tmp_path / method, method, 0), method, 0)
        about = {"command": f"madao compare {number}", "jobs": 1 + number}
        found = json.loads(record(read_runs(tmp_path / method), about, {}, found))
    assert (found["command"], found["jobs"]) == ("madao compare 2", 3)
    made = {name: (cell.get("command"), cell.get("jobs")) for name, cell in found["cells"].items()}
    assert made == {"base 0": ("madao compare 0", 1), "uniform 0": ("madao compare 1", 2), "learned 0": (None, None)}


def test_cells_of_one_folder_say_which_command_made_them(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for seed in (1, 0, 2):
        write_run(run_path(tmp_path, "learned", seed), "learned", seed, error=0.1 + seed / 100)
        found = json.loads(record(read_runs(tmp_path), {"command": f"madao compare {seed}", "jobs": 1}, {}, found))
    made = {name: cell.get("command") for name, cell in found["cells"].items()}
    assert made == {"learned 1": "madao compare 1", "learned 0": "madao compare 0", "learned 2": None}
    lengths = {name: len(cell["policy"]["epochs"]) for name, cell in found["cells"].items()}
    assert lengths["learned 0"] > 1, "the whole way of the first seed"
    assert lengths["learned 1"] == lengths["learned 2"] == 1, "where the others ended"

    write_run(run_path(tmp_path, "learned", 1), "learned", 1, error=0.2)  # trained again
    found = json.loads(record(read_runs(tmp_path), {"command": "madao compare again", "jobs": 1}, {}, found))
    made = {name: cell.get("command") for name, cell in found["cells"].items()}
    assert made == {"learned 1": None, "learned 0": "madao compare 0", "learned 2": "madao compare 2"}
