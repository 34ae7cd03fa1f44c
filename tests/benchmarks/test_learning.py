"""Benchmarks of what is learned run, and compute what they say."""

import dataclasses
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import madao
from madao.cli import main
from madao.cli.compare_arguments import read_plan
from madao.config.train_config import DataConfig, TrainConfig
from madao.data import DATASETS, Dataset, DatasetRequest, InMemoryImages
from madao.experiments.published import record
from madao.experiments.table import read_runs, run_path
from madao.training.builders.run import build_run
from madao.training.splits import load_splits
from tests.helpers.run_directories import write_run
from tests.helpers.scripts import ROOT, call, module, run


@pytest.mark.slow
def test_the_known_answers_are_run_once_and_judged(tmp_path: Path) -> None:
    output, found = tmp_path / "out.json", []
    small = ["--epochs=1", "--seeds=1", "--planted=rotate", "--jobs=1", f"--output={output}"]
    for methods in ("learned,uniform", "uniform,base"):
        run("known_answers.py", *small, f"--methods={methods}")
        found.append(json.loads(output.read_text()))
    before, after = found
    assert after["cells"].keys() == {"learned rotate 0", "uniform rotate 0", "base rotate 0"}
    assert after["cells"]["uniform rotate 0"] == before["cells"]["uniform rotate 0"]
    assert after["summary"]["learned rotate"]["compared"] == 1
    assert 0 < after["summary"]["learned rotate"]["largest_selection"] < 1


def test_the_readme_has_the_known_answers_of_the_record() -> None:
    summary = json.loads((ROOT / "benchmarks" / "results" / "known-answers.json").read_text())["summary"]
    readme = (ROOT / "README.md").read_text().replace("*", "").splitlines()
    titles = {"rotate": "rotated", "translate": "translated", "shear": "sheared", "brightness": "brightness"}
    for planted, title in {**titles, "invert": "every second one inverted"}.items():
        cells = next(line for line in readme if line.startswith(f"| {title}")).split(" | ")[1:]
        methods = [summary[f"{method} {planted}"] for method in ("standard", "uniform", "madao")]
        assert cells[:3] == [f"{100 * method['median_test_error']:.1f} %" for method in methods]
        assert f"in {methods[-1]['first']} " in cells[3]
        assert [method["runs"] for method in methods] == [10, 10, 10]
        assert methods[-1]["below_uniform"] == 10


@pytest.mark.slow
def test_the_hardness_benchmark_runs(tmp_path: Path) -> None:
    small = ["--epochs=1", "--copies=2", "--steps=4", "--planted=rotate", f"--figure={tmp_path / 'out.png'}"]
    assert "v without the training gradient" in run("hardness.py", *small, cwd=tmp_path)
    assert (tmp_path / "out.png").exists()


@pytest.mark.slow
def test_the_signal_benchmark_runs(tmp_path: Path) -> None:
    settings = ["--epochs=1", "--batch_size=64", "--augment.crop=none", "--logger=none"]
    main(["train", *settings, "--augment.method=uniform", f"--out={tmp_path / 'run'}"])
    chosen = ["--variants=paper|2 draws|deflated, 4", f"--output={tmp_path / 'out.json'}"]
    run("gradient_signal.py", str(tmp_path / "run"), "--steps=4", "--warm=1", *chosen)
    variants = json.loads((tmp_path / "out.json").read_text())["variants"]
    assert len(variants) == 3
    for row in variants.values():
        assert -1 <= row["selection"]["agreement"] <= 1
        assert row["milliseconds"] > 0
        assert len(row["favours"]) == 5


def test_the_worth_of_operations_is_what_errors_were_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "worth.py", monkeypatch)
    pairs, names, generator = 18, script.OPERATIONS, np.random.default_rng(0)
    true = {name: index - 6.5 for index, name in enumerate(names)}  # points, which sum to 0
    halves = script.halves(pairs)
    assert halves[:5] == script.halves(5)
    without = {f"{pair} b": half for pair, half in enumerate(halves)}
    without |= {f"{pair} a": [name for name in names if name not in half] for pair, half in enumerate(halves)}

    def cells(noise: float) -> dict[str, dict[str, Any]]:
        """Errors that are the sum of what operations are worth."""
        points = {key: sum(true[name] for name in names if name not in left) for key, left in without.items()}
        errors = {key: 0.5 - (each + noise * generator.normal()) / 100 for key, each in points.items()}
        return {key: {"without": without[key], "test_error": error} for key, error in errors.items()}

    exact = script.worth(cells(0))
    assert {name: row["points"] for name, row in exact.items()} == pytest.approx(true)
    assert max(row["half_width"] for row in exact.values()) < 1e-9
    noisy = [script.worth(cells(1)) for _ in range(200)]
    within = [abs(row["points"] - true[name]) < row["half_width"] for found in noisy for name, row in found.items()]
    assert np.mean(within) == pytest.approx(0.95, abs=0.015)
    assert script.worth({key: cell for key, cell in cells(0).items() if int(key.split()[0]) < 13}) == {}

    look = {"100": {"v": true, "against": {name: -worth for name, worth in true.items()}}}
    older = {"100": {"v": true}}
    ranks = script.summary({**cells(0), "all 0": {"influence": look}})["rank_correlation"]
    assert {name: row["value"] for name, row in ranks.items()} == pytest.approx(
        {"v, epoch 100": 1, "against, epoch 100": -1}
    )
    both = script.summary({**cells(0), "all 0": {"influence": look}, "all 1": {"influence": older}})
    assert [*both["rank_correlation"]] == ["v, epoch 100"]


def noise(source: DatasetRequest) -> Dataset:
    """In the place of CIFAR-10."""
    numbers = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2000, 3, 32, 32), dtype=torch.uint8, generator=numbers)
    images = InMemoryImages(pixels, torch.arange(2000) % 10)
    return Dataset("cifar10", tuple("0123456789"), images, None, images.subset(torch.arange(10)), flip=True)


def looking(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script that looks at trainings, of noise in the place of photos, and little of it."""
    script = module(ROOT / "benchmarks" / name, monkeypatch)
    monkeypatch.setitem(DATASETS, "cifar10", noise)
    looks = script if name == "looks.py" else sys.modules["looks"]
    monkeypatch.setattr(looks, "COPIES", 1)
    whole = looks.settings

    def some(*arguments: Any, **augment: Any) -> TrainConfig:
        config: TrainConfig = whole(*arguments, **augment)
        return dataclasses.replace(config, data=dataclasses.replace(config.data, max_images=200), batch_size=20)

    monkeypatch.setattr(script, "settings", some)
    return script


@pytest.mark.slow
def test_the_worth_benchmark_trains_and_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    script = looking("worth.py", monkeypatch)
    cell = script.train([], 0, 1, "data", "cpu", (1,))
    assert cell["without"] == []
    assert [*cell["influence"]] == ["1"]
    for row in cell["influence"]["1"].values():
        assert [*row] == script.OPERATIONS
        assert all(np.isfinite(value) for value in row.values())


def test_a_policy_follows_influences_whatever_their_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "looks.py", monkeypatch)
    rising = {name: float(index) for index, name in enumerate(script.OPERATIONS)}
    large = {name: 5 + 100 * value for name, value in rising.items()}
    policy = script.following([rising, large])
    step = float(1 / np.std(np.arange(14)))  # from each operation to the next, in deviations
    expected = torch.softmax(step * torch.arange(14.0), 0)
    torch.testing.assert_close(policy.selection.detach(), expected.expand(2, 14))

    one = {name: float(name == "Rotate") for name in script.OPERATIONS}
    both = script.scores([rising, one])
    mean = np.arange(14) / np.std(np.arange(14)) + np.array([*one.values()]) / np.std([*one.values()])
    assert both == pytest.approx((mean - mean.mean()) / mean.std())


@pytest.mark.parametrize(
    ("name", "of", "since", "said"),
    [
        ("beyond", "worth", 0, "12 looks: AutoContrast 21 %, Color 16 %"),
        ("pooled", "few-photos-gpu", 50, "168 looks: Posterize 21 %, AutoContrast 15 %"),
    ],
)
def test_the_policy_that_follows_looks_is_what_they_say(
    name: str,
    of: str,
    since: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = module(ROOT / "benchmarks" / "looks.py", monkeypatch)
    results, written = str(ROOT / f"benchmarks/results/{of}.json"), tmp_path / "policy.json"
    call(script, monkeypatch, results, str(written), "--since", str(since))
    assert capsys.readouterr().out.startswith(said)
    assert written.read_text() == (ROOT / "benchmarks" / "paper" / f"{name}.json").read_text()
    with pytest.raises(SystemExit):
        call(script, monkeypatch, results, str(written), "--since", "101")
    assert "101" in capsys.readouterr().err


def test_the_mean_policy_is_that_of_the_second_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = module(ROOT / "benchmarks" / "mean_policy.py", monkeypatch)
    rng = np.random.default_rng(0)
    names = [operation.name for operation in madao.Policy().operations]
    way: dict[str, Any] = {"operations": names, "epochs": [0.0, 4.0, 5.0, 10.0]}
    way["selection"] = rng.dirichlet(np.ones(14), (4, 3)).tolist()
    way |= {kind: rng.uniform(0.1, 0.9, (4, 3, 14)).tolist() for kind in ("application", "magnitude")}
    kept, written = tmp_path / "record.json", tmp_path / "policy.json"
    varied = {"policy": way, "settings": {"augment.magnitude_jitter": 0.5}}
    record = {"settings": {"augment.stages": 3}, "cells": {"varied 0": varied, "uniform 0": {}}}
    kept.write_text(json.dumps(record))
    call(script, monkeypatch, str(kept), "varied 0", str(written))
    found = madao.Policy.from_spec(madao.PolicySpec.load(written))
    assert found.magnitude_jitter == 0.5
    for kind in ("selection", "application", "magnitude"):
        expected = torch.tensor(np.mean(way[kind][2:], axis=0), dtype=torch.float32)
        if kind == "magnitude":
            expected[:, [not operation.has_magnitude for operation in found.operations]] = 0
        torch.testing.assert_close(getattr(found, kind).detach(), expected, rtol=1e-4, atol=1e-5)

    with pytest.raises(SystemExit):
        call(script, monkeypatch, str(kept), "uniform 0", str(written))
    assert "'uniform 0'" in capsys.readouterr().err
    for changed, stages in ((way, 2), (way | {"operations": names[::-1]}, 3)):
        with pytest.raises(SystemExit):
            script.mean_policy(changed, {"augment.stages": stages})


@pytest.mark.parametrize(
    ("name", "of", "cell"),
    [("learned", "paper-cifar10-wrn-28-2", "deflated 0"), ("same-loss", "paper-cifar10-wrn-28-2-60", "same-loss 0")],
)
def test_policies_that_were_learned_before_are_those_of_the_records(
    name: str, of: str, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = module(ROOT / "benchmarks" / "mean_policy.py", monkeypatch)
    record = json.loads((ROOT / f"benchmarks/results/{of}.json").read_text())
    again = script.mean_policy(record["cells"][cell]["policy"], record["settings"] | record["cells"][cell]["settings"])
    kept = madao.Policy.from_spec(madao.PolicySpec.load(ROOT / f"benchmarks/paper/{name}.json"))
    for kind in ("selection", "application", "magnitude"):  # the record may have fewer points since
        torch.testing.assert_close(getattr(kept, kind), getattr(again, kind), rtol=0, atol=0.02)


def test_looks_agree_within_trainings_and_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "looks.py", monkeypatch)
    rising = np.arange(14) - 6.5
    turned = np.concatenate([rising[7:], rising[:7]])

    def cell(*values: np.ndarray[Any, Any]) -> dict[str, Any]:
        looks = [{script.BEYOND: dict(zip(script.OPERATIONS, map(float, each), strict=True))} for each in values]
        return {"influence": dict(zip(("1", "2", "4"), looks, strict=True))}

    cells = {"uniform 1": cell(-rising, rising, 3 * rising), "again 1 1": cell(rising, turned, turned), "gentle 1": {}}
    cells["uniform 2"] = cell(turned, -rising, -rising)
    found = script.agreement({"epochs": 4, "cells": cells})
    r = float(np.corrcoef(rising, turned)[0, 1])
    assert found == pytest.approx({"one training": 1, "the same photos": r, "other photos": (-1 - r) / 2})


def test_looking_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = looking("looks.py", monkeypatch)
    losses = []
    for at in ((), (1,)):
        config = script.settings("data", str(tmp_path / str(len(at))), 0, 2, method="uniform")
        trainer = script.Watched(build_run(config), at)
        losses.append(trainer.fit().test_loss)
        assert [*trainer.looks] == [str(epoch) for epoch in at]
    assert losses[0] == losses[1]


def test_cells_that_lack_something_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "cells.py", monkeypatch)
    path = tmp_path / "out.json"
    cells = {"a": {"value": 0}, "b": {"value": 0, "looks": 1}, "c": {"value": 0}}
    path.write_text(json.dumps({"epochs": 1, "note": "by hand", "cells": cells}))
    monkeypatch.setattr(script, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))

    def is_incomplete(name: str, cell: dict[str, Any]) -> bool:
        return name != "c" and "looks" not in cell

    wanted = dict.fromkeys("abcd", (1,))
    script.complete(path, 1, wanted, lambda value: {"value": value}, len, 1, is_incomplete)
    after = json.loads(path.read_text())
    assert {name: cell["value"] for name, cell in after["cells"].items()} == {"a": 1, "b": 0, "c": 0, "d": 1}
    assert (after["note"], after["summary"]) == ("by hand", 4)


def test_photos_are_divided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "looks.py", monkeypatch)
    monkeypatch.setitem(DATASETS, "cifar10", noise)
    splits = load_splits(DataConfig(name="cifar10", max_images=60, val_fraction=0.5))
    anew = script.divided_anew(splits, 1)
    assert len(anew.train) == len(anew.validation) == 30

    def labelled(part: Any) -> set[tuple[bytes, int]]:
        return {(image.numpy().tobytes(), int(label)) for image, label in zip(part.images, part.labels, strict=True)}

    assert labelled(splits.train) | labelled(splits.validation) == labelled(anew.train) | labelled(anew.validation)
    assert 5 < len(labelled(splits.train) & labelled(anew.train)) < 25


def test_each_policy_follows_the_looks_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "few_photos.py", monkeypatch)

    def cell(at: int) -> dict[str, Any]:
        return {"influence": {str(epoch): {script.BEYOND: {"Rotate": at + epoch}} for epoch in (1, 2, 3, 4)}}

    cells = {"uniform 7": cell(0), "again 1 7": cell(10), "again 2 7": cell(20), "uniform 8": cell(100), "gentle 8": {}}
    worth = {"cells": {"all 0": {"influence": {"25": {script.EASE: {"Rotate": 5}}}}, "0 a": {"test_error": 0.5}}}

    def followed(method: str, seed: int = 7) -> list[int]:
        return [look["Rotate"] for look in script.looks_for(method, seed, 4, cells, worth)]

    assert followed("looked") == [1, 2, 3, 4]
    assert followed("thrice") == [2, 3, 4, 12, 13, 14, 22, 23, 24]
    assert followed("pooled") == [102, 103, 104]
    assert followed("pooled", 8) == followed("thrice")
    assert followed("easy") == [5]
    assert followed("uniform") == []
    del cells["uniform 8"]
    with pytest.raises(SystemExit, match="--seeds"):
        followed("pooled")


def test_few_photos_trains_what_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "few_photos.py", monkeypatch)
    monkeypatch.setattr(sys.modules["cells"], "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    trained: list[tuple[str, int, float, int]] = []

    def train(method: str, seed: int, epochs: int, root: str, device: str, magnitude: float, looks: Any) -> Any:
        trained.append((method, seed, magnitude, len(looks)))
        found: dict[str, Any] = {"test_error": 0.4, "validation_error": magnitude}
        if method in script.WATCHED:
            found["influence"] = {str(epoch): {script.BEYOND: {}} for epoch in (1, 2, 3, 4)}
        return found

    monkeypatch.setattr(script, "train", train)
    output = tmp_path / "out.json"
    old = {"uniform 5": {"test_error": 0.5}, "gentle 5": {"test_error": 0.5}}  # trained when nobody looked
    output.write_text(json.dumps({"epochs": 4, "cells": old}))
    arguments = "--root data --epochs 4 --first 5 --seeds 1 --methods gentle,looked,thrice,beyond,randaugment"
    for _ in range(2):  # the second time nothing is left
        call(script, monkeypatch, *arguments.split(), "--output", str(output))
    trials = [("randaugment", 3, magnitude, 0) for magnitude in script.MAGNITUDES]
    assert trained[:6] == [*trials, *((name, 5, 0.0, 0) for name in ("uniform", "again 1", "again 2"))]
    # Of four looks at each training those from half on, for three trainings; all of one; all that worth.json has.
    assert trained[6:] == [
        ("looked", 5, 0.06, 4),
        ("thrice", 5, 0.06, 9),
        ("beyond", 5, 0.06, 12),
        ("randaugment", 5, 0.06, 0),
    ]
    with pytest.raises(SystemExit):
        call(script, monkeypatch, "--root", "data", "--methods", "lookd")


def test_few_photos_are_compared_seed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "few_photos.py", monkeypatch)
    errors = {"uniform 3": 0.40, "uniform 4": 0.50, "followed 3": 0.39, "followed 4": 0.47, "randaugment 0.39 5": 0.5}
    rows = script.summary({name: {"test_error": error} for name, error in errors.items()})
    assert rows["followed"].keys() == {"test_error", "minus uniform"}
    row = rows["followed"]["minus uniform"]
    # Differences of −1 and −3: a deviation of √2 over √2, times the 12.7 of one degree of freedom.
    assert row == {"seeds": 2, "mean": pytest.approx(-2), "half_width": pytest.approx(12.7062, rel=1e-4)}
    assert rows["randaugment 0.39"] == {"test_error": {"seeds": 1, "mean": 50.0}}
    found = zip(script.MAGNITUDES, (3, 1, 2), strict=True)
    trials = {f"randaugment {each} 3": {"validation_error": error} for each, error in found}
    assert script.chosen(trials) == 0.79


def test_each_method_of_few_photos_has_the_settings_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "few_photos.py", monkeypatch)

    class Untrained:
        looks: ClassVar[dict[str, Any]] = {}

        def __init__(self, *_: Any) -> None: ...

        def fit(self) -> Any:
            return SimpleNamespace(test_error=0.4, validation_error=0.4)

    configs: list[TrainConfig] = []
    monkeypatch.setattr(script, "Watched", Untrained)
    monkeypatch.setattr(script, "build_run", lambda config, *_: configs.append(config))
    for method in ("moderate", "varied", "pooled-file", "randaugment", "same-loss-all"):
        script.train(method, 7, 1, "data", "cpu", 0.06, [])
    assert {config.seed for config in configs} == {config.data.split_seed for config in configs} == {7}
    assert [(config.augment.init_magnitude, config.augment.magnitude_jitter) for config in configs] == [
        *((0.3, 0.0), (None, 1.0), (None, 0.0), (None, 0.0), (None, 0.0))
    ]
    methods = [config.augment.method for config in configs]
    assert [Path(method).name for method in methods] == [
        *("uniform", "uniform", "pooled.json", "randaugment", "learned")
    ]
    assert Path(methods[2]).exists()
    assert configs[3].augment.magnitude == 0.06
    assert (configs[4].outer.baseline, configs[4].outer.train_batch_size) == ("same-loss", 1000)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["looked", "randaugment", "again 1", "same-loss-all"])
def test_the_few_photos_benchmark_trains(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = looking("few_photos.py", monkeypatch)
    look = {name: float(index) for index, name in enumerate(sys.modules["looks"].OPERATIONS)}
    cell = script.train(method, 0, 1, "data", "cpu", 0.3, [look] if method == "looked" else [])
    assert 0 <= cell["test_error"] <= 1
    assert 0 <= cell["validation_error"] <= 1
    assert ("influence" in cell) == (method == "again 1")


def test_how_far_ahead_is_judged_by_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "horizon.py", monkeypatch)
    losses = {"all alike": (2.0, 1.0), "Rotate": (2.1, 0.7), "Color": (1.9, 0.9), "Invert": (1.8, 1.2)}

    def cell(more: float) -> dict[str, Any]:
        """An operation that looks worst one epoch ahead is best at the end; photos that are harder by so much."""
        ahead = {
            name: {
                epoch: dict.fromkeys(("test_loss", "test_error", "validation_loss"), loss + more)
                for epoch, loss in zip(("1", "50"), each, strict=True)
            }
            for name, each in losses.items()
        }
        said = {"Rotate": 0.1, "Color": 0.2, "Invert": 0.3}
        return {"ahead": ahead, "influence": {"0": {"v": said}, "5": {"v": {name: -a for name, a in said.items()}}}}

    cells = {"10": cell(0.5), "9": cell(0)}
    assert script.gains(cells.values(), "50", "test_loss") == pytest.approx(
        {"Rotate": 0.3, "Color": 0.1, "Invert": -0.2}
    )
    found = script.summary(cells)
    assert found["points"] == pytest.approx({"Rotate": 30, "Color": 10, "Invert": -20})
    ranks = {title: row["rank_correlation"] for title, row in found["looks"].items()}
    assert ranks == pytest.approx(
        {"influence v, after 0": -1, "influence v, after 5": 1}
        | {f"{kind}, 1 ahead": -1 for kind in ("test loss", "test error", "validation loss")}
        | {f"{kind}, 50 ahead": 1 for kind in ("test loss", "test error", "validation loss")}
    )
    # What a branch says of its own end is no evidence: here every second seed says the opposite.
    against = cell(0)
    for name, error in (("Rotate", 1.2), ("Color", 0.9), ("Invert", 0.7)):
        against["ahead"][name]["50"]["test_error"] = error
    torn = script.summary({"9": cell(0), "10": against, "11": cell(0), "12": against})
    assert torn["looks"]["test error, 50 ahead"] == pytest.approx({"rank_correlation": -1, "of_halves": -1})


@pytest.mark.slow
def test_the_horizon_benchmark_goes_on_in_several_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    script = looking("horizon.py", monkeypatch)
    rates: list[float] = []

    class Noted(script.Branch):  # type: ignore[name-defined, misc]
        def _train_step(self, images: torch.Tensor, targets: torch.Tensor) -> None:
            super()._train_step(images, targets)
            rates.append(self.optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(script, "Branch", Noted)
    monkeypatch.setattr(script, "AHEAD", (25, 50))
    cell = script.train(0, 4, "data", "cpu", ["Rotate"])
    half, steps = 0.05, 5  # of the learning rate's cosine; an epoch has five batches
    short, long = (half * (1 - np.arange(epochs * steps) / (epochs * steps)) for epochs in (1, 2))
    assert rates == pytest.approx([*short, *short, *long, *long])
    assert {name: [*rows] for name, rows in cell["ahead"].items()} == {"all alike": ["1", "2"], "Rotate": ["1", "2"]}
    for ahead in ("1", "2"):
        assert cell["ahead"]["Rotate"][ahead] != cell["ahead"]["all alike"][ahead]
    assert [*cell["influence"]] == ["0", "1", "2"]


def test_the_moco_benchmark_says_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "moco.py", monkeypatch)
    for method, error in (("base", 0.3), ("learned", 0.25)):
        write_run(run_path(tmp_path / "runs", method, 0), method, 0, epochs=3, error=error)
    path = tmp_path / "moco-cifar10.json"
    path.write_text(record(read_runs(tmp_path / "runs"), {}, {}))
    commands: list[list[str]] = []

    def madao(command: list[str]) -> str:
        commands.append(command)
        if command[0] == "compare":
            return ""
        split, rate = command[command.index("--split") + 1], float(command[command.index("--linear.lr") + 1])
        assert split == "validation" or rate == 3, "test images choose nothing"
        return f"{split} linear error {20 + abs(rate - 3):.2f} % (2000 of 10000), loss 1.0"

    monkeypatch.setattr(script, "_madao", madao)
    call(script, monkeypatch, "--run", "--results", str(tmp_path), "--output", str(tmp_path))
    assert read_plan(commands[0][1:]).base.task.name == "moco"
    assert len(commands) == 1 + len(script.METHODS) * (len(script.RATES) + 1)
    table = script.table(json.loads(path.read_text())).splitlines()
    assert table[2].startswith("| base augmentation | 70.00 | 80.00 (rate 3) |")
    assert table[3] == "| uniform policy | missing | missing | missing | missing | missing |"
    assert table[4].startswith("| learned policy | 75.00 | 80.00 (rate 3) |")
    assert (tmp_path / "moco.png").stat().st_size > 10_000
    for wrong in (["--out", "x"], ["--run", "--seeds", "3"]):
        with pytest.raises(SystemExit):
            call(script, monkeypatch, *wrong)
