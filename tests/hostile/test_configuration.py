"""A stranger's configuration is only read: it imports nothing, opens nothing, and is small and plain or refused."""

import itertools
import sys
import time
from pathlib import Path

import pytest

from madao.cli import main
from madao.cli.compare_arguments import read_plan
from madao.cli.train import read_config
from madao.config.train_config import TrainConfig
from madao.errors import UserError
from tests.helpers.command_line import fails

MODULE = "module_of_a_stranger"
NAMING_A_CLASS = [
    f"data: {{class_path: {MODULE}.Evil}}",
    f"data: {{class_path: {MODULE}.Evil, init_args: {{}}}}",
    f"data: {MODULE}.Evil",
    f"class_path: {MODULE}.Evil",
    f"class_path: {MODULE}.Evil\ninit_args: {{epochs: 3}}",
    f"model: {{name: {{class_path: {MODULE}.Evil}}}}",
    f"augment: {{limits: {{class_path: {MODULE}.Evil}}}}",
    f"augment: {{exclude: {{class_path: {MODULE}.Evil}}}}",
    f"augment: {{exclude: [{{class_path: {MODULE}.Evil}}]}}",
    f"data: !!python/object/apply:{MODULE}.Evil []",
    f"epochs: !!python/name:{MODULE}.Evil ''",
    "data.class_path: " + MODULE + ".Evil",
    f"[{{class_path: {MODULE}.Evil}}]",
]
NAMING_A_FILE = [
    "config: other.yaml",
    "config: [other.yaml]",
    "data: other.yaml",
    "__path__: other.yaml",
    "__default_config__: other.yaml",
    "default_config_files: [other.yaml]",
    "$schema: other.yaml",
    "print_config: ''",
    "recipe: cifar10-wrn-28-2",
    "help: true",
]
BOMBS = {
    "billion laughs": "a: &a [x, x, x, x, x, x, x, x]\n"
    + "\n".join(
        f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]" for a, b in itertools.pairwise("abcdefghij")
    ),
    "recursive list": "augment: {exclude: &a [*a]}",
    "recursive mapping": "&a {data: *a}",
    "a bomb in text": 'augment: {exclude: "&a [*a]"}',
    "deep": "[" * 100_000,
    "long": "epochs: " + "9" * 1_000_000,
    "many keys": "{" + ",".join(f"a{i}: 1" for i in range(100_000)) + "}",
    "a large integer": "epochs: 0x" + "f" * 100_000,
    "a key that is a number": "1: 2",
    "a key that is a list": "? [a]\n: 1",
    "two documents": "epochs: 1\n--- \nepochs: 2",
    "a null character": "epochs: \0",
}


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that leaves a file behind when it is imported, and with another file of settings."""
    (tmp_path / f"{MODULE}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nclass Evil: pass\n")
    (tmp_path / "other.yaml").write_text("epochs: 7\nsize: 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_nothing_ran(folder: Path) -> None:
    assert MODULE not in sys.modules
    assert not (folder / "imported").exists()


@pytest.mark.parametrize("text", NAMING_A_CLASS)
def test_no_class_that_a_file_names_is_imported(stranger: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (stranger / "config.yaml").write_text(text)
    for arguments in (["--config", "config.yaml"], ["--config", text], ["--out", ".", "--resume"]):
        fails(["train", *arguments], capsys)
        check_nothing_ran(stranger)
    with pytest.raises(UserError):
        read_plan(["--config", "config.yaml"])
    check_nothing_ran(stranger)


@pytest.mark.parametrize("text", NAMING_A_FILE)
def test_no_file_that_a_file_names_is_read(stranger: Path, text: str) -> None:
    (stranger / "config.yaml").write_text(text)
    for arguments in (["--config", "config.yaml"], ["--out", ".", "--resume"]):
        with pytest.raises(UserError):
            read_config(arguments)


@pytest.mark.parametrize(
    "option", ["--data", "--data.class_path", "--model", "--outer", "--augment.init_args", "--data+", "--linear"]
)
def test_no_option_takes_a_class(stranger: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in (f"{MODULE}.Evil", f"{{class_path: {MODULE}.Evil}}", "other.yaml"):
        for verb in (["train"], ["compare"], ["evaluate", "run"]):
            assert "unknown option" in fails([*verb, f"{option}={value}"], capsys)
    check_nothing_ran(stranger)


@pytest.mark.parametrize(
    "line", [f"{{data: {{class_path: {MODULE}.Evil}}}}", "{config: other.yaml}", "{data: other.yaml}", "{data: null}"]
)
def test_no_variant_names_a_class_or_a_file(stranger: Path, line: str) -> None:
    (stranger / "variants.yaml").write_text(f"mine: {line}")
    with pytest.raises(UserError):
        read_plan(["--variants", "variants.yaml"])
    check_nothing_ran(stranger)


def test_no_environment_variable_names_a_class(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSONARGPARSE_DEFAULT_ENV", "true")
    for name in ("MADAO_TRAIN__DATA", "MADAO TRAIN__DATA", "MADAO_TRAIN_DATA"):
        monkeypatch.setenv(name, f"{{class_path: {MODULE}.Evil}}")
    assert read_config(["--epochs", "3"]) == TrainConfig(epochs=3)
    check_nothing_ran(stranger)


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_at_once(stranger: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (stranger / "config.yaml").write_text(text)
    started = time.process_time()
    for arguments in (["--config", "config.yaml"], ["--out", ".", "--resume"]):
        assert len(fails(["train", *arguments], capsys)) < 2_100
    assert main(["report", ".", "--figures", "false"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(UserError):
        read_plan(["--variants", "config.yaml"])
    assert time.process_time() - started < 5


def test_plain_settings_are_read(stranger: Path) -> None:
    (stranger / "config.yaml").write_text(
        "# mine\ndata:\n  root: ~\n  size: 16\nmodel:\noptimizer: {lr: 1e-3, milestones: [1, 2.5], schedule: step}\n"
        "augment: {limits: {Rotate: 10}, exclude: [Invert]}\nepochs: '3'\nout: null\nouter.every: 4\n"
    )
    config = read_config(["--config", "config.yaml", "--augment.exclude+=Solarize"])
    assert (config.data.root, config.data.size, config.out, config.epochs) == (None, 16, None, 3)
    assert (config.optimizer.lr, config.optimizer.milestones) == (0.001, [1, 2.5])
    assert (config.augment.limits, config.augment.exclude) == ({"Rotate": 10.0}, ["Invert", "Solarize"])
    assert config.outer.every == 4
    assert read_config(["--config", f"{{epochs: 5}} # {'long ' * 1_000}"]).epochs == 5
    assert read_config(["--config", "{augment: {exclude: [Invert]}}", "--epochs=4"]).augment.exclude == ["Invert"]


def test_null_and_home_as_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for arguments in (["--out", "null"], ["--out=null"]):
        assert read_config(arguments).out == "./null"
    assert read_config(["--out=~", "--data.root", "~/photos"]).out == str(tmp_path)
    assert read_config(["--out=~", "--data.root", "~/photos"]).data.root == str(tmp_path / "photos")
    assert read_config(["--config", "{out: ~/runs, data: {root: ~}}"]).out == str(tmp_path / "runs")
    assert read_config(["--config", "{out: null}"]).out is None


@pytest.mark.parametrize("setting", ["accumulate", "seed", "optimizer.lr", "data.val_fraction", "augment.exclude"])
def test_settings_that_need_a_value_are_not_null(setting: str) -> None:
    section, _, name = setting.rpartition(".")
    with pytest.raises(UserError, match=f"`{setting}`"):
        read_config(["--config", f"{{{section}: {{{name}: null}}}}" if section else f"{{{name}: null}}"])
    assert read_config(["--config", "{data: {size: null}, model: {name: null}}"]).data.size is None


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(
            (name, value)
            for name in ("outer.lr", "optimizer.lr", "outer.init_decay")
            for value in ("1e39", "inf", "nan")
        ),
        *((name, "1e39") for name in ("optimizer.weight_decay", "optimizer.clip", "outer.damping", "outer.scale")),
        ("optimizer.milestones", "[1e39]"),
        ("augment.limits", "{Rotate: 1e39}"),
        ("data.split_seed", str(2**70)),
        ("data.size", str(2**70)),
        ("batch_size", str(2**70)),
    ],
)
def test_numbers_that_the_model_cannot_hold_are_refused(setting: str, value: str) -> None:
    section, _, name = setting.rpartition(".")
    inner = f"{{{name}: {value.replace('inf', '.inf').replace('nan', '.nan')}}}"
    step = "{schedule: step, milestones: [1e39]}"
    text = f"{{{section}: {step if name == 'milestones' else inner}}}" if section else inner
    with pytest.raises(UserError, match=name):
        read_config(["--config", text])
