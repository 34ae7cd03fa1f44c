"""A final training on all images, with a policy that was learned on some of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from madao.cli import main

QUICK = ["--epochs", "2", "--batch_size", "4", "--logger", "none", "--device", "cpu"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Forty images of two classes."""
    return written(tmp_path / "data.npz")


def written(path: Path, test: bool = True) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    arrays = {"x_train": images, "y_train": np.arange(40) % 2}
    if test:
        arrays |= {"x_test": images[:10], "y_test": np.arange(10) % 2}
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's own stub takes the names for options
    return path


def train(root: Path, out: Path, *more: str) -> int:
    return main(["train", "--data.root", str(root), "--out", str(out), *QUICK, *more])


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_a_learned_policy_trains_a_model_on_all_images(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learned, final = tmp_path / "learned", tmp_path / "final"
    assert train(root, learned, "--outer.every", "1", "--outer.warmup", "0") == 0
    capsys.readouterr()
    policy = str(learned / "policy.json")
    assert train(root, final, "--augment.method", policy, "--data.val_fraction", "0") == 0
    printed = capsys.readouterr().out
    assert "40 images to train on, none for validation, 10 for the test" in printed
    assert "final: epoch 2/2 · loss" in printed
    assert "validation error" not in printed
    assert "% (epoch 2)" in printed
    result = json.loads((final / "result.json").read_text())
    assert result["validation_error"] is None
    assert 0 <= result["test_error"] <= 1
    assert not (final / "checkpoints" / "best.pt").exists()
    assert main(["train", "--out", str(final), "--resume"]) == 0
    assert "nothing is left to train" in capsys.readouterr().out
    assert main(["evaluate", str(final)]) == 0
    assert "test error" in capsys.readouterr().out
    assert main(["report", str(final)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(final), "--split", "validation"]) == 2
    assert refusal(capsys) == "madao: this data has no validation split; use --split test"
    assert main(["evaluate", str(final), "--weights", "best"]) == 2
    assert "best.pt" in refusal(capsys)


def test_nothing_need_be_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = written(tmp_path / "data.npz", test=False), tmp_path / "run"
    assert train(root, out, "--augment.method", "uniform", "--data.val_fraction", "0") == 0
    printed = capsys.readouterr().out
    assert "trained, nothing measured (epoch 2; no test set)" in printed
    assert "madao evaluate" not in printed
    assert main(["report", str(out)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(out)]) == 2
    assert refusal(capsys) == "madao: this data has no test split; use --root with a folder that has one"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "--data.val_fraction 0 leaves no images to learn a policy from"),
        (
            ["--augment.method", "uniform", "--config={eval_checkpoint: best}"],
            "eval_checkpoint best chooses by validation images",
        ),
    ],
)
def test_what_needs_validation_images_says_so(
    more: list[str], told: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(root, tmp_path / "run", "--data.val_fraction", "0", *more) == 2
    assert told in refusal(capsys)
    assert not (tmp_path / "run").exists()


def test_a_magnitude_cannot_be_chosen_without_them(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data.root", str(root), "--data.val_fraction", "0", "--out", str(tmp_path / "runs"), *QUICK]
    compare = ["compare", *arguments, "--methods", "base,randaugment", "--seeds", "1"]
    assert main(compare) == 2
    assert "RandAugment's magnitude is chosen by validation error" in capsys.readouterr().err
    assert main(["compare", *arguments, "--methods", "base,learned"]) == 2
    assert "leaves no images for learned to learn from" in capsys.readouterr().err
    assert main([*compare, "--search.trials", "0", "--export", str(tmp_path / "record.json")]) == 0
    assert len(json.loads((tmp_path / "record.json").read_text())["cells"]["base 0"]["curve"]["train_loss"]) == 2
    assert "test error" in capsys.readouterr().out


def test_what_nothing_can_judge_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = written(tmp_path / "data.npz", test=False)
    compare = ["compare", "--data.root", str(root), "--out", str(tmp_path / "runs"), *QUICK]
    compare += ["--methods", "base,uniform", "--seeds", "1"]
    assert main([*compare, "--data.val_fraction", "0"]) == 2
    assert "leaves no images to judge base by, and there is no test set" in refusal(capsys)
    assert not (tmp_path / "runs").exists()
    assert main(compare) == 0, "the folder is free for what can be judged"
