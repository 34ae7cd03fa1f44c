"""`madao train`: the happy path, and every mistake as one line with exit code 2."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import madao
from madao.cli import main
from madao.cli.train import read_config
from madao.config.train_config import TrainConfig
from madao.training.builders.run import build_run
from madao.training.monitor.advice import describe_run
from madao.training.trainer import Trainer
from tests.helpers.command_line import fails

QUICK = ["--epochs", "1", "--logger", "none", "--device", "cpu", "--data.workers", "0"]


def folder(root: Path, classes: tuple[str, ...] = ("cat", "dog"), count: int = 6, side: int = 20) -> Path:
    generator = np.random.default_rng(0)
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            values = generator.integers(0, 100, (side, side + 4, 3), dtype=np.uint8) + 60 * label
            Image.fromarray(values.astype(np.uint8)).save(root / name / f"{number}.png")
    return root


def test_a_folder_of_images_becomes_a_model_and_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = folder(tmp_path / "photos"), tmp_path / "run"
    arguments = ["--data.root", str(root), "--data.size", "16", "--batch_size", "4", "--out", str(out), *QUICK]
    assert main(["train", *arguments, "--outer.every", "1", "--outer.warmup", "0"]) == 0
    printed = capsys.readouterr().out
    assert "validation error" in printed
    assert "no test set" in printed
    assert printed.splitlines()[0] == (
        f"{root}: 10 images to train on, 2 for validation, no test images; 2 classes (cat, dog)"
    )
    assert "small-cnn at 16 pixels on cpu: 1 epoch of 2 steps; the policy learns in 2, which is few" in printed
    assert f"madao evaluate {out} --split validation" in printed
    assert f"madao report {out}" in printed
    assert f"madao export {out} --to torchvision" in printed
    assert madao.PolicySpec.load(out / "policy.json")
    assert yaml.safe_load((out / "config.yaml").read_text())["data"]["root"] == str(root)
    assert main(["evaluate", "--run", str(out), "--split", "validation"]) == 0
    assert re.search(r"validation error [\d.]+ % \(\d of 2\)", capsys.readouterr().out)


def test_train_validation_and_test_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "val", "test"):
        folder(tmp_path / "photos" / split)
    arguments = ["--data.root", str(tmp_path / "photos"), "--data.size", "16", "--out", str(tmp_path / "run"), *QUICK]
    assert main(["train", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "test error" in printed
    assert "has no image" not in printed
    assert main(["evaluate", "--run", str(tmp_path / "run")]) == 0
    assert "(epoch 1)" in capsys.readouterr().out


def test_a_class_that_is_missing_from_the_test_split_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "val"):
        folder(tmp_path / "photos" / split, ("cat", "dog", "emu"))
    folder(tmp_path / "photos" / "test", ("cat", "dog"))
    arguments = ["--data.root", str(tmp_path / "photos"), "--data.size", "16", "--out", str(tmp_path / "run"), *QUICK]
    assert main(["train", *arguments]) == 0
    assert (
        "run: the test split has no image of 1 of the 3 classes (emu): the test error will say nothing about them"
    ) in capsys.readouterr().out


def test_a_policy_that_will_not_learn_is_said_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data.root", str(folder(tmp_path / "photos")), "--data.size", "16", "--resume", *QUICK]
    assert main(["train", *arguments, "--out", str(tmp_path / "run"), "--outer.every", "10"]) == 0
    printed = capsys.readouterr().out
    assert f"there is no checkpoint in {tmp_path / 'run'}: a new run begins" in printed
    assert "the policy learns in none, and will stay as it starts: raise --epochs, or lower --outer.every" in printed
    assert "favours" not in printed
    assert "\nthe policy did not change: no outer step was taken: raise --epochs" in printed
    assert "madao export" not in printed
    assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 0
    assert "there is no checkpoint" not in capsys.readouterr().out


def test_a_model_that_learned_nothing_is_told_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("test error"))
    assert lines[place + 1].startswith("the model has learned hardly anything: its training loss is 2.")
    assert "that of guessing 2.30; try --optimizer.lr 0.01, or more steps by --epochs" in lines[place + 1]


@pytest.mark.parametrize(("every", "warmup", "epochs"), [(10, 0, 30), (7, 1.0, 30), (3, 2.5, 30), (10, 6.0, 41)])
def test_outer_steps_are_counted_as_they_are_taken(tmp_path: Path, every: int, warmup: float, epochs: int) -> None:
    more = ["--epochs", str(epochs), "--outer.every", str(every), "--outer.warmup", str(warmup)]
    run = build_run(read_config([*QUICK, *more, "--batch_size", "200", "--out", str(tmp_path / "run")]))
    assert run.outer_loop is not None
    outer, taken = run.outer_loop.outer, 0
    for outer.calls in range(epochs * run.steps_per_epoch):
        taken += outer.due()
    counted = re.search(r"the policy learns in (\d+)", describe_run(run)[-1])
    assert counted is not None
    assert int(counted[1]) == taken > 0


def test_images_that_do_not_fit_in_memory_come_from_workers(tmp_path: Path) -> None:
    arguments = ["--data.root", str(folder(tmp_path / "photos")), "--data.size", "16", "--data.cache_gib", "0"]
    arguments += ["--batch_size", "4", *QUICK, "--data.workers", "1"]
    assert main(["train", *arguments, "--out", str(tmp_path / "streamed")]) == 0
    assert main(["train", *arguments, "--data.cache_gib", "1", "--out", str(tmp_path / "resident")]) == 0
    # The same images in the same order: the same weights.
    states = [torch.load(tmp_path / name / "checkpoints/last.pt")["model"] for name in ("streamed", "resident")]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_flags_come_after_yaml_and_yaml_after_recipes(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("epochs: 7\nbatch_size: 32\n")
    config = read_config(
        ["--recipe", "cifar10-wrn-28-2", "--config", str(tmp_path / "mine.yaml"), "--batch_size", "16", "--resume"]
    )
    assert (config.model.name, config.epochs, config.batch_size, config.resume) == ("wrn-28-2", 7, 16, True)
    assert read_config(["--recipe=svhn-wrn-28-2"]).epochs == 160
    assert read_config([]) == TrainConfig()


def test_resuming_needs_only_the_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--out", str(tmp_path / "run"), *QUICK]
    assert main([*arguments, "--seed", "3"]) == 0
    first = capsys.readouterr().out.splitlines()[-1]
    assert main(["train", "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == first
    message = fails(["train", "--out", str(tmp_path / "run"), "--resume", "--seed", "4"], capsys)
    assert "was started with seed = 3, not 4" in message


@pytest.mark.parametrize("more", [[], ["--device", "cpu"], ["--data.workers=0", "--logger", "none"]])
def test_without_a_run_there_is_nothing_to_resume(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    remedy = "name the folder of a run with --out, or leave out --resume to start one"
    message = fails(["train", "--resume", "--out", "runs/phtos", *more], capsys)
    assert message == f"madao: there is no run to resume in 'runs/phtos'; {remedy}"
    for name in ("control", "photos"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").touch()
    message = fails(["train", *more, "--out=runs/phtos", "--resume"], capsys)
    assert f"did you mean 'runs/photos'? known are runs/control, runs/photos; {remedy}" in message
    assert not Path("runs/phtos").exists()
    assert read_config(["--data.root", "photos/", "--out=runs/phtos", "--resume", *more]).resume  # which begins it


def test_unknown_names_suggest_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "typo.yaml").write_text("optimizer:\n  learning_rat: 0.1\nepohcs: 3\n")
    for arguments, message in (
        (["train", "--data.rot", "x"], "unknown option '--data.rot'; did you mean '--data.root'?"),
        (["train", "--lr", "1"], "unknown option '--lr'; did you mean '--optimizer.lr'?"),
        (["train", "--recipe", "cifar10-wrn-28-3"], "did you mean 'cifar10-wrn-28-2'?"),
        (["train", "--config", str(tmp_path / "typo.yaml")], "unknown setting"),
        (["train", "--model.name", "resnet19"], "unknown model 'resnet19'; did you mean 'resnet18'?"),
        (["train", "--data.name", "cifar11"], "did you mean 'cifar10'?"),
        (["train", "--augment.method", "randaug"], "did you mean 'randaugment'?"),
        (["train", "--augment.exclude", "[Rotat]"], "did you mean 'Rotate'?"),
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["evaluate", "--rn", "x"], "unknown option '--rn'; did you mean '--run'?"),
        (["train", "--epoch", "3"], "unknown option '--epoch'; did you mean '--epochs'?"),
        (["recipes", "svhn"], "did you mean 'svhn-wrn-28-2'?"),
        (["recipes", "svhn-wrn-28-2", "cifar10-wrn-28-2"], "expected one name, got 2"),
    ):
        assert message in fails([*arguments], capsys), arguments


def test_a_misspelt_setting_in_yaml_suggests_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "typo.yaml").write_text("epohcs: 3\n")
    message = fails(["train", "--config", str(tmp_path / "typo.yaml")], capsys)
    assert "'epohcs'" in message
    assert "did you mean 'epochs'?" in message


def test_bad_values_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "nowhere"
    for arguments, message in (
        (["--epochs", "x"], "--epochs: expected a whole number, got 'x'"),
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--outer.estimator", "magic"], "--outer.estimator: expected one of influence, relaxed, got 'magic'"),
        (["--data.root", str(missing)], f"there is no folder {missing}"),
        (["--config", str(missing)], "there is no such file"),
        (["--data.val_fraction", "1.5"], "--data.val_fraction must be at least 0 and below 1"),
        (["--device", "tpu"], "--device must be auto, cpu, cuda"),
        (["--augment.method", str(missing / "policy.json")], "there is no policy file"),
        (
            ["--data.shift", "rotate", "--data.name", "cifar10"],
            "--data.shift goes with the data sets digits and shapes",
        ),
        (["--data.name", "folder"], "needs the path of its files, --data.root"),
        (["--model.pretrained", str(missing)], str(missing)),
    ):
        assert message in fails(["train", *arguments, "--out", str(tmp_path / "run")], capsys), arguments
    assert not (tmp_path / "run").exists()


def test_bad_data_is_one_line_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train(root: Path, *more: str) -> list[str]:
        return ["train", "--data.root", str(root), "--data.size", "16", "--out", str(tmp_path / "run"), *QUICK, *more]

    empty = folder(tmp_path / "empty")
    (empty / "zebra").mkdir()
    assert "zebra" in fails(train(empty), capsys)

    corrupt = folder(tmp_path / "corrupt")
    (corrupt / "cat" / "3.png").write_bytes(b"not an image")
    message = fails(train(corrupt), capsys)
    assert str(corrupt / "cat" / "3.png") in message
    assert "--data.on_error skip" in message

    lacking = tmp_path / "lacking"
    folder(lacking / "train", ("cat", "dog", "emu"))
    folder(lacking / "val", ("cat", "dog"))
    assert "the validation split has no image of 1 of the 3 classes (emu)" in fails(train(lacking), capsys)

    single = folder(tmp_path / "single")
    folder(tmp_path / "one", ("emu",), count=1)
    (tmp_path / "one" / "emu").rename(single / "emu")
    assert "emu" in fails(train(single), capsys)
    assert not (tmp_path / "run").exists()

    assert main(train(corrupt, "--data.on_error", "skip")) == 0
    assert "skipped 1 image that could not be read" in capsys.readouterr().out


def test_a_directory_that_holds_another_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--out", str(tmp_path / "run"), *QUICK]
    assert main(arguments) == 0
    capsys.readouterr()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert "already holds a run; continue it by --resume" in fails(arguments, capsys)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    # What is misspelt comes first, or the next --out would be for nothing.
    assert "did you mean 'randaugment'?" in fails([*arguments, "--augment.method", "randaug"], capsys)
    assert "did you mean 'cifar10'?" in fails([*arguments, "--data.name", "cifar11"], capsys)
    assert "did you mean '--epochs'?" in fails([*arguments, "--epohcs", "3"], capsys)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    assert "is no run directory" in fails(["train", "--out", str(tmp_path / "other"), *QUICK], capsys)


def test_a_loss_that_runs_away_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--out", str(tmp_path / "run"), *QUICK, "--epochs", "30", "--optimizer.lr", "1e30"]
    assert re.search(r"the loss is not finite at step \d+ ", fails(arguments, capsys))


def test_a_malicious_checkpoint_or_policy_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pickle

    class Attack:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "owned"),))  # type: ignore[return-value]

    assert main(["train", "--out", str(tmp_path / "run"), *QUICK]) == 0
    for name in ("last.pt", "previous.pt", "best.pt"):
        with (tmp_path / "run" / "checkpoints" / name).open("wb") as file:
            torch.save({"model": Attack()}, file)
    (tmp_path / "policy.json").write_bytes(pickle.dumps(Attack()))
    capsys.readouterr()
    assert "cannot read the checkpoint" in fails(["train", "--out", str(tmp_path / "run"), "--resume"], capsys)
    assert "cannot read the checkpoint" in fails(["evaluate", "--run", str(tmp_path / "run")], capsys)
    fails(["train", "--augment.method", str(tmp_path / "policy.json"), "--out", str(tmp_path / "new")], capsys)
    assert not (tmp_path / "owned").exists()


def test_more_classes_than_the_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = folder(tmp_path / "two"), folder(tmp_path / "three", ("cat", "dog", "emu"))
    out = str(tmp_path / "run")
    assert main(["train", "--data.root", str(small), "--data.size", "16", "--out", out, *QUICK]) == 0
    capsys.readouterr()
    message = fails(["evaluate", "--run", out, "--root", str(large), "--split", "validation"], capsys)
    assert "the data has 3 classes, but the model of" in message


def test_interrupted_it_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import signal

    step = Trainer.train_step

    def interrupted(trainer: Trainer, images: torch.Tensor, labels: torch.Tensor) -> None:
        step(trainer, images, labels)
        if trainer.run.step == 2:
            signal.raise_signal(signal.SIGINT)

    out = str(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", interrupted)
        assert main(["train", "--out", out, *QUICK]) == 130
    assert f"stopped at step 3, a checkpoint is written; resume with: madao train --out {out} --resume" in (
        capsys.readouterr().err
    )
    assert main(["train", "--out", out, "--resume"]) == 0


@pytest.mark.parametrize(
    ("where", "kept"), [("train_epoch", "there is no checkpoint yet"), ("finish", "the last checkpoint is kept")]
)
def test_interrupted_at_once_it_says_how_to_go_on(
    where: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, where, interrupted)
        assert main(["train", "--out", out, *QUICK]) == 130
    message = f"madao: stopped immediately, {kept}; resume with: madao train --out {out} --resume\n"
    assert capsys.readouterr().err == message
    assert main(["train", "--out", out, "--resume"]) == 0


@pytest.mark.parametrize(
    "where", ["builders.data.load_splits", "builders.run.build_network", "run.directory.RunDirectory.claim"]
)
def test_interrupted_before_it_began_it_says_so(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"madao.training.{where}", interrupted)
    assert main(["train", "--out", str(tmp_path / "run"), *QUICK]) == 130
    assert capsys.readouterr().err == "madao: stopped before training began; run the same command again\n"
    assert not (tmp_path / "run").exists()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_all_alike_by_choice_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--out", str(tmp_path / "run"), *QUICK, "--config={outer: {learn: strength}}"]
    arguments += ["--outer.every", "2", "--outer.warmup", "0"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "the policy learned how often and how strongly" in printed
    assert "prefers hardly any operation" not in printed


def test_a_run_to_resume_has_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    message = fails(["train", "--resume"], capsys)
    assert message == "madao: --resume needs the folder of a run; name it with --out"
    assert main(["train", *QUICK, "--out", "runs/photos"]) == 0
    capsys.readouterr()
    assert fails(["train", "--resume"], capsys).endswith("with --out; found runs/photos")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["photos"]


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help", "all"]) == 0
    printed = capsys.readouterr().out
    for option in ("--data.root", "--outer.estimator", "--recipe", "--resume", "--precision"):
        assert option in printed
    assert "Number of training steps between outer steps" in printed
    for arguments in ([], ["help"]):
        assert main(arguments) == 0
        assert "usage: madao COMMAND" in capsys.readouterr().out
    assert main(["help", "recipes"]) == 0
    assert "usage: madao recipes" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--epochs", "3", "--help"], ["--help", "--epochs", "3"]])
def test_help_begins_with_what_everybody_needs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *arguments]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: madao train [IMAGES] [OPTIONS]")
    assert "\n  --epochs EPOCHS" in printed
    assert "\n  madao train photos/" in printed
    assert "\n  outer      Learning of the policy\n" in printed
    assert "--outer.every" not in printed
    assert len(printed.splitlines()) < 90


def test_a_section_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help", "outer"]) == 0
    printed = capsys.readouterr().out
    assert "\nLearning of the policy:\n" in printed
    assert "--outer.every" in printed
    assert "--data.root" not in printed
    assert "did you mean 'outer'? known are data, task," in fails(["train", "--help", "otter"], capsys)
