"""Policy files of strangers: refused in one short line, or usable."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import madao
from madao.cli import main
from madao.errors import PolicyFileError
from madao.export import export
from madao.ops import OPERATIONS
from madao.policy import FrozenPolicy
from tests.helpers.command_line import fails


def content() -> Any:
    return json.loads(madao.Policy().spec().dumps())


def only(operation: str, strongest: float) -> Any:
    """A policy that always applies one operation, as strongly as it can."""
    found = content()
    found["operations"][operation]["range"][1] = strongest
    for stage in found["stages"]:
        for name, entry in stage.items():
            entry |= {"selection": float(name == operation), "application": 1.0}
        stage[operation]["magnitude"] = strongest
    return found


@pytest.mark.parametrize("operation", [name for name, each in OPERATIONS.items() if each.has_magnitude])
@pytest.mark.parametrize("times", [9.9, 10.1, 1e6, 1e38, 1e300])
def test_a_range_is_refused_or_gives_images(operation: str, times: float) -> None:
    known = OPERATIONS[operation].range
    assert known is not None
    neutral, strongest = known
    text = json.dumps(only(operation, neutral + times * (strongest - neutral)))
    if times > 10:
        with pytest.raises(PolicyFileError, match="range"):
            madao.PolicySpec.loads(text)
        with pytest.raises(ValueError, match=operation):
            madao.Policy(limits={operation: neutral + times * (strongest - neutral)})
        return
    policy = FrozenPolicy(madao.PolicySpec.loads(text))
    for channels in (1, 3):
        images = torch.rand(8, channels, 12, 9, generator=torch.Generator().manual_seed(0))
        found = policy(images)
        assert found.isfinite().all()
        assert 0 <= found.min() <= found.max() <= 1


def deep(found: Any) -> str:
    return json.dumps(found)[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}"


def renamed(found: Any, name: str) -> str:
    found["operations"][name] = found["operations"].pop("Rotate")
    return json.dumps(found)


def with_value(*path: str | int) -> Callable[[Any], Callable[[Any], str]]:
    def place(value: Any) -> Callable[[Any], str]:
        def changed(found: Any) -> str:
            holder = found
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
            return json.dumps(found)

        return changed

    return place


MANY = "".join(f', "a{number}": 1' for number in range(200_000))
LONG = "\x1b[2J" + "x" * 10_000_000
HOSTILE: dict[str, Callable[[Any], str]] = {
    "a name of 10 MB": lambda found: renamed(found, LONG),
    "a field of 10 MB": with_value(LONG)(1),
    "a format of 10 MB": with_value("format")(LONG),
    "a unit of 10 MB": with_value("operations", "Rotate", "range")(LONG),
    "a list as range": with_value("operations", "Rotate", "range")([1] * 1_000_000),
    "a list as version": with_value("version")([LONG]),
    "a number of 4,000 digits": with_value("version")(10**4_000),
    "a name twice": lambda found: json.dumps(found)[:-1] + ', "a": 1' * 2 + f"{MANY}}}",
    "deep": deep,
    "100 MB": lambda found: json.dumps(found) + " " * 100_000_000,
    "a name that clears the screen": lambda found: renamed(found, "Rotate\x1b[2J"),
    "a class of 10 MB": with_value("classes")({LONG: {}}),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_one_short_line_at_once(
    make: Callable[[Any], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.json"
    path.write_text(make(content()))
    started = time.process_time()
    with pytest.raises(PolicyFileError) as caught:
        madao.PolicySpec.load(path)
    assert len(str(caught.value)) < 1_000
    assert str(caught.value).isprintable()
    assert fails(["export", str(path), "--to", "python", "--out", str(tmp_path / "a.py")], capsys).isprintable()
    assert time.process_time() - started < 5


def test_many_classes_take_time_in_proportion() -> None:
    found = content()
    stages = [{name: {"selection": 1 / 14, "application": 1.0} for name in found["operations"]} for _ in range(1)]
    found["operations"] = {name: {} for name in ("Invert", "Equalize")}
    stages = [{name: {"selection": 0.5, "application": 1.0} for name in found["operations"]}]
    found |= {"version": 2, "stages": stages, "classes": {f"class {number}": stages for number in range(20_000)}}
    text, started = json.dumps(found), time.process_time()
    assert len(madao.PolicySpec.loads(text).classes) == 20_000
    assert time.process_time() - started < 5


@pytest.mark.parametrize("name", ["a\ud800", "\x1b[2J", "emoji 😀", 'quote " and \\', "line\nbreak", "é"])
def test_every_class_name_survives_the_export_to_python(name: str, tmp_path: Path) -> None:
    spec = madao.ClassPolicy((name, "other")).spec()
    assert madao.PolicySpec.loads(spec.dumps()) == spec
    text = export(spec, "python", "exported")
    found: dict[str, Any] = {}
    exec(compile(text.encode(), "exported.py", "exec"), found)
    assert found["CLASSES"] == [name, "other"]
    spec.save(tmp_path / "policy.json")
    out = str(tmp_path / "exported.py")
    assert main(["export", str(tmp_path / "policy.json"), "--to", "python", "--out", out]) == 0
