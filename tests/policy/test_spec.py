"""Policies as files: whole, readable, and safe to read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from madao import Policy, PolicySpec, load_policy
from madao.errors import PolicyFileError
from madao.ops import OPERATIONS, PAPER, Operation
from madao.policy import AutoAugment, FrozenPolicy, OperationParams, TrivialAugment

UNIT = st.floats(0, 1)


@st.composite
def specs(draw: st.DrawFn) -> PolicySpec:
    names = draw(st.lists(st.sampled_from(PAPER), min_size=1, max_size=6, unique=True))
    operations = []
    for name in names:
        operation = OPERATIONS[name]
        if operation.range is not None and draw(st.booleans()):
            neutral, strongest = operation.range
            operation = operation.limited(neutral + (strongest - neutral) * draw(st.floats(0.01, 3)))
        operations.append(operation)
    stages = tuple(draw(stage(operations)) for _ in range(draw(st.integers(1, 3))))
    fill = draw(UNIT | st.tuples(UNIT, UNIT, UNIT))
    return PolicySpec(tuple(operations), stages, fill)


def stage(operations: list[Operation]) -> st.SearchStrategy[tuple[OperationParams, ...]]:
    @st.composite
    def build(draw: st.DrawFn) -> tuple[OperationParams, ...]:
        weights = draw(st.lists(st.floats(1e-3, 1), min_size=len(operations), max_size=len(operations)))
        return tuple(
            OperationParams(
                weight / sum(weights),
                draw(UNIT),
                None if operation.range is None else draw(st.floats(min(operation.range), max(operation.range))),
            )
            for operation, weight in zip(operations, weights, strict=True)
        )

    return build()


@given(specs())
def test_round_trip(spec: PolicySpec) -> None:
    assert PolicySpec.loads(spec.dumps()) == spec


@given(specs())
@settings(max_examples=30)
def test_a_loaded_policy_has_the_probabilities_of_the_saved_one(spec: PolicySpec) -> None:
    loaded = PolicySpec.loads(spec.dumps())
    assert all(map(torch.equal, loaded.tensors(torch.float64), spec.tensors(torch.float64)))
    selection, application, magnitude = loaded.tensors(torch.float64)
    torch.testing.assert_close(selection.sum(1), torch.ones(len(spec.stages), dtype=torch.float64))
    assert ((magnitude >= 0) & (magnitude <= 1)).all()
    assert application.shape == magnitude.shape == (len(spec.stages), len(spec.operations))


@given(specs(), st.data())
@settings(max_examples=200)
def test_a_cut_file_is_an_error_that_says_so(spec: PolicySpec, data: st.DataObject) -> None:
    text = spec.dumps()
    cut = text[: data.draw(st.integers(0, len(text.rstrip()) - 1))]
    with pytest.raises(PolicyFileError, match="cut short"):
        PolicySpec.loads(cut)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON document."""
    items = [*value.items()] if isinstance(value, dict) else [*enumerate(value)] if isinstance(value, list) else []
    return [(value, key) for key, _ in items] + [place for _, child in items for place in places(child)]


JUNK = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
)


@given(specs(), st.data(), JUNK)
@settings(max_examples=300)
def test_a_damaged_file_is_refused_whole(spec: PolicySpec, data: st.DataObject, junk: Any) -> None:
    """One value replaced or deleted: either the result is a valid spec or a PolicyFileError, never anything else."""
    document = json.loads(spec.dumps())
    container, key = data.draw(st.sampled_from(places(document)))
    if data.draw(st.booleans()):
        del container[key]
    else:
        container[key] = junk
    try:
        loaded = PolicySpec.loads(json.dumps(document))
    except PolicyFileError:
        return
    assert FrozenPolicy(loaded).sample(torch.empty(4, 3, 1, 1)).choice.max() < len(loaded.operations)


JITTERED = Policy(magnitude_jitter=0.5).spec().dumps()


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(Policy().spec().dumps())
    change(document)
    return json.dumps(document)


def place_of(document: Any, path: str) -> Any:
    for key in filter(None, path.split(".")):
        document = document[int(key) if key.isdigit() else key]
    return document


def assign(path: str, value: object) -> Callable[[dict[str, Any]], object]:
    parent, _, last = path.rpartition(".")
    return lambda document: place_of(document, parent).__setitem__(last, value)


def rename(path: str, old: str, new: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: place_of(document, path).__setitem__(new, place_of(document, path).pop(old))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "not a whole JSON document"),
        ("[1, 2]", "the file: expected an object, got a list"),
        ("null", "the file: expected an object, got null"),
        ("[" * 100_000, "not a whole JSON document"),
        ('{"format": "madao-policy", "format": "x", "version": 1}', "format: is there twice"),
        (changed(assign("format", "AutoAugment")), "format"),
        (changed(assign("version", 5)), "version: .* upgrade madao"),
        (changed(assign("version", "1")), "version: expected a whole number"),
        (changed(lambda d: d.pop("stages")), "'stages' is missing"),
        (changed(rename("", "fill", "fil")), "'fill' is missing"),
        (changed(assign("colour", 1)), "unknown field 'colour'"),
        (changed(assign("fill", 2)), "fill"),
        (changed(assign("fill", [0.1, 0.2])), "fill"),
        (changed(assign("operations.Rotate.unit", ["radians"])), "operations.Rotate.unit"),
        (changed(assign("fill", "black")), "fill: expected a number"),
        (changed(rename("operations", "Rotate", "Rotat")), "operations.Rotat: .* did you mean 'Rotate'"),
        (changed(assign("operations.Rotate.range", [0])), "operations.Rotate.range"),
        (changed(assign("operations.Rotate.range", [5, 30])), "operations.Rotate.range: .* changes nothing at 0"),
        (changed(assign("operations.Rotate.range", [0, -30])), "operations.Rotate.range: .* above 0"),
        (changed(assign("operations.Rotate.signed", False)), "operations.Rotate.signed"),
        (changed(assign("operations.Invert.range", [0, 1])), "operations.Invert: unknown field 'range'"),
        (changed(assign("stages", {})), "stages: expected a list"),
        (changed(assign("stages", [])), "stages: there is none"),
        (changed(lambda d: d["stages"][1].pop("Color")), r"stages\[1\]: .*'Color'"),
        (changed(assign("stages.0.Color.selection", -0.1)), r"stages\[0\].Color.selection"),
        (changed(assign("stages.0.Color.selection", 0.5)), r"stages\[0\]: .* sum to 1"),
        (changed(assign("stages.0.Color.application", True)), r"stages\[0\].Color.application"),
        (changed(assign("stages.1.Rotate.magnitude", 31)), r"stages\[1\].Rotate.magnitude: .* from 0 to 30"),
        (changed(assign("stages.1.Rotate.magnitude", float("nan"))), r"stages\[1\].Rotate.magnitude: .* nan"),
        (changed(assign("stages.1.Rotate.magnitude", 10**400)), r"stages\[1\].Rotate.magnitude: .* inf"),
        (changed(assign("stages.1.Rotate.magnitud", 3)), r"stages\[1\].Rotate: .* did you mean 'magnitude'"),
        (JITTERED.replace('"variation": 0.5', '"variation": 1.5'), "variation: must be"),
        (JITTERED.replace('"variation": 0.5', '"variation": "much"'), "variation: expected a number"),
        (JITTERED.replace('  "variation": 0.5,\n', ""), "'variation' is missing"),
        (JITTERED.replace('"version": 4', '"version": 1'), "unknown field 'variation'"),
    ],
)
def test_errors_name_the_field_and_the_remedy(text: str, place: str) -> None:
    with pytest.raises(PolicyFileError, match=place):
        PolicySpec.loads(text)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    spec = Policy(limits={"Rotate": 10}, exclude=["Invert"], fill=(0.1, 0.2, 0.3)).spec()
    spec.save(path)
    assert PolicySpec.load(path) == spec
    assert [p.name for p in tmp_path.iterdir()] == ["policy.json"]
    text = path.read_text()
    assert '"Rotate": {"selection": 0.0769231, "application": 0.622459, "magnitude": 6.22459}' in text
    assert max(map(len, text.splitlines())) < 120

    path.write_text(text[:700])
    with pytest.raises(PolicyFileError, match=r"policy\.json"):
        PolicySpec.load(path)
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(PolicyFileError, match=r"policy\.json"):
        PolicySpec.load(path)
    with pytest.raises(FileNotFoundError):
        PolicySpec.load(tmp_path / "missing.json")


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.json"
    Policy().spec().save(path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="full"):
        Policy(stages=3).spec().save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["policy.json"]


def test_the_table_for_people() -> None:
    policy = Policy(stages=1)
    with torch.no_grad():
        policy.selection_logits[0, PAPER.index("Rotate")] = 2.0
    lines = str(policy.spec()).splitlines()
    assert lines[0].split() == ["stage", "1", "selected", "applied", "strength"]
    assert lines[1].split() == ["Rotate", "36.2%", "62.2%", "±19°"]
    assert any(line.split()[0] == "Color" and line.endswith("factor 1 ± 0.62") for line in lines)
    assert any(line.split()[0] == "Invert" and line.endswith("–") for line in lines)


@pytest.mark.parametrize(
    ("operations", "stages", "place"),
    [
        ((), ((),), "operations"),
        ((OPERATIONS["Invert"],) * 2, ((OperationParams(0.5, 1),) * 2,), "Invert"),
        ((OPERATIONS["Invert"],), ((),), r"stages\[0\]"),
        ((OPERATIONS["Invert"],), ((OperationParams(1, 1, 0.5),),), "Invert"),
        ((OPERATIONS["Invert"],), ((OperationParams(1, 1.5),),), "Invert.application"),
        ((OPERATIONS["Rotate"],), ((OperationParams(1, 1),),), r"stages\[0\].Rotate.magnitude"),
    ],
)  # fmt: skip
def test_a_spec_cannot_be_wrong(operations: Any, stages: Any, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        PolicySpec(operations, stages)


def test_load_policy_by_name_or_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    Policy().spec().save(path)
    assert load_policy(path).operations == load_policy(str(path)).operations == Policy().operations
    assert load_policy(path.parent).operations == Policy().operations
    assert type(load_policy("trivialaugment-normal")).__name__ == "TrivialAugment"
    images = torch.rand(8, 3, 6, 6)
    assert torch.equal(load_policy("autoaugment-svhn", seed=3)(images), load_policy("autoaugment-svhn", seed=3)(images))
    for name in ("uniform", "randaugment", "trivialaugment", "autoaugment-svhn", str(path)):
        assert not torch.equal(load_policy(name, 1).sample(images).sign, load_policy(name, 2).sample(images).sign), name
    spaces = [load_policy(name) for name in ("trivialaugment", "trivialaugment-normal")]
    assert [policy.space for policy in spaces if isinstance(policy, TrivialAugment)] == ["wide", "normal"]
    published = [load_policy(f"autoaugment-{name}") for name in ("cifar10", "svhn", "imagenet")]
    assert [p.policy for p in published if isinstance(p, AutoAugment)] == ["cifar10", "svhn", "imagenet"]
    with pytest.raises(ValueError, match="did you mean 'randaugment'"):
        load_policy("randaug")
    with pytest.raises(FileNotFoundError, match=r"runs/policy\.json"):
        load_policy("runs/policy.json")
