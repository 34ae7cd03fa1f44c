"""What is read of a run directory, whole or not."""

from pathlib import Path

import numpy as np
import pytest

from madao.config.train_config import OuterConfig
from madao.errors import ReportError
from madao.report import find_runs, read_run
from tests.helpers.run_directories import write_run


def test_a_whole_run_is_read_whole(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    assert run.epochs == 8
    assert run.method == "learned"
    assert run.warmup == 2
    assert run.setting("data.shift") == "rotate"
    assert run.setting("data.nothing", "else") == "else"
    assert run.policy is not None
    assert run.trajectory is not None
    assert run.trajectory.values["selection"].shape == (9, 2, 14)
    assert run.samples is not None
    assert run.statuses == {"truncated": 30}
    assert run.result["test_error"] == 0.05
    assert not run.missing


def test_the_warm_up_is_a_fifth_unless_it_is_set(tmp_path: Path) -> None:
    assert read_run(write_run(tmp_path / "run", epochs=10, outer=OuterConfig())).warmup == 2
    assert read_run(write_run(tmp_path / "none", epochs=10, outer=OuterConfig(warmup=0))).warmup == 0


def test_a_budget_that_paid_for_no_outer_step_is_told(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", learned=False, outer=OuterConfig())
    assert str(read_run(path).unlearned).endswith("raise `outer.budget` or `epochs`")


@pytest.mark.parametrize(
    ("method", "learned", "skipped", "ended", "why"),
    [
        ("learned", False, 0, True, "no outer step was taken: raise `epochs`"),
        ("learned", False, 2, True, "all 16 outer steps were skipped"),
        ("learned", True, 2, True, None),
        ("learned", False, 0, False, None),
        ("uniform", False, 0, True, None),
    ],
)
def test_why_a_policy_is_as_it_started(
    tmp_path: Path, method: str, learned: bool, skipped: int, ended: bool, why: str | None
) -> None:
    path = write_run(tmp_path / "run", method, learned=learned, skipped=skipped, ended=ended)
    found = read_run(path).unlearned
    assert found is None if why is None else str(found).startswith(why)
    text = (path / "metrics.csv").read_text().replace("outer_updates", "of another version")
    (path / "metrics.csv").write_text(text)
    assert read_run(path).unlearned is None  # as far as anybody knows


def test_a_run_without_a_policy_misses_nothing(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", method="base"))
    assert (run.policy, run.trajectory, run.missing) == (None, None, [])


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("samples.npz", "gallery"),
        ("outer.csv", "health"),
        ("timing.csv", "time and memory"),
        ("trajectory.jsonl", "curves of the policy"),
    ],
)
def test_what_an_older_version_did_not_write_is_named(tmp_path: Path, name: str, what: str) -> None:
    path = write_run(tmp_path / "run")
    (path / name).unlink()
    (missing,) = read_run(path).missing
    assert missing.startswith(name)
    assert what in missing


@pytest.mark.parametrize("name", ["samples.npz", "policy.json", "result.json", "split.json", "environment.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe\x00rubbish"])
def test_damaged_files_do_not_keep_the_rest_from_being_shown(tmp_path: Path, name: str, content: bytes) -> None:
    path = write_run(tmp_path / "run")
    (path / name).write_bytes(content)
    run = read_run(path)
    assert run.epochs == 8
    assert run.trajectory is not None


def test_samples_do_not_run_code(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    np.savez(path / "samples.npz", images=np.array([{"a": 1}], dtype=object))
    assert read_run(path).samples is None


def test_lines_cut_short_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", ended=False)
    for name in ("metrics.csv", "timing.csv", "outer.csv", "trajectory.jsonl"):
        text = (path / name).read_bytes()
        (path / name).write_bytes(text[:-9])
    run = read_run(path)
    assert run.epochs == 7
    assert len(run.timing["epoch"]) == 7
    assert len(run.outer["step"]) == 29
    assert run.trajectory is not None
    assert run.trajectory.epochs[-1] == 7


def test_a_run_that_has_no_epoch_yet_is_one_line(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / "metrics.csv").write_text("epoch,step\n")
    with pytest.raises(ReportError, match="epoch"):
        read_run(path)


def test_settings_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / "config.yaml").write_text("- a\n- list\n")
    with pytest.raises(ReportError, match=r"config\.yaml"):
        read_run(path)


def test_runs_are_found_once_among_and_under_folders(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_run(tmp_path / "runs" / name, epochs=1)
    (tmp_path / "runs" / "other").mkdir()
    found = find_runs([tmp_path / "runs", tmp_path / "runs" / "b", tmp_path / "runs" / "." / "a"])
    assert [path.name for path in found] == ["a", "b"]


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("absent", "empty", "file"):
        with pytest.raises(ReportError, match=name):
            find_runs([tmp_path / name])
