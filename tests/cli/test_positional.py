"""`madao train photos/` and `madao compare photos/`, and lists with commas."""

import os
from pathlib import Path
from typing import Any

import pytest

from madao.cli.compare_arguments import read_plan
from madao.cli.train import read_config
from madao.errors import UserError


@pytest.mark.parametrize(
    "arguments",
    [
        ["photos/"],
        ["photos/", "--epochs", "3"],
        ["--epochs", "3", "photos/"],
        ["--data.download", "photos/"],  # a switch takes no folder
        ["--data.download", "yes", "photos/", "--out=x"],
        ["--recipe", "cifar10-wrn-28-2", "photos/"],
        ["--config", "{data: {root: elsewhere/}}", "photos/"],
        ["photos/", "--config", "{data: {root: elsewhere/}}"],
    ],
)
def test_images_need_no_option(arguments: list[str]) -> None:
    assert read_config(arguments).data.root == "photos/"
    plan = read_plan([*arguments, "--methods", "base,uniform"] if "--out=x" in arguments else [*arguments])
    assert {config.data.root for config in (plan.base, *plan.methods.values())} == {"photos/"}


def test_a_comparison_of_photos_is_named_after_their_folder() -> None:
    assert read_plan(["pictures/pets/"]).folder == Path("runs/compare-pets")


def test_a_file_of_weights_is_no_folder_of_images() -> None:
    config = read_config(["--model.pretrained", "weights.safetensors", "photos/"])
    assert (config.model.pretrained, config.data.root) == ("weights.safetensors", "photos/")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["photos/", "more/"], "expected one folder or file of images, got 2"),
        (["photos/", "--data.root", "more/"], "with or without --data.root, not both"),
        (["run", "--resume"], "--out run --resume"),
        (["--resume", "run"], "--out run --resume"),
    ],
)
def test_other_words_are_refused(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs("run/checkpoints")
    Path("run/config.yaml").touch()
    for read in (read_config, read_plan) if "--resume" not in arguments else (read_config,):
        with pytest.raises(UserError, match=message):
            read(arguments)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--augment.exclude", "Invert,Solarize"], ["Invert", "Solarize"]),
        (["--augment.exclude=Invert, Solarize"], ["Invert", "Solarize"]),
        (["--augment.exclude", "[Invert, Solarize]"], ["Invert", "Solarize"]),
        (["--augment.exclude", "Invert"], ["Invert"]),
        (["--augment.exclude", "Invert", "--augment.exclude+", "Rotate,Solarize"], ["Invert", "Rotate", "Solarize"]),
        (["--augment.without", "Invert,Solarize"], ["Invert", "Solarize"]),
        (["--augment.exclude", ""], []),
    ],
)
def test_lists_are_written_with_commas(given: list[str], expected: list[str]) -> None:
    assert read_config(given).augment.exclude == expected


@pytest.mark.parametrize("given", ["Rotate=10,ShearX=0.2", "Rotate=10, ShearX=.2", "{Rotate: 10, ShearX: 0.2}"])
def test_limits_are_written_with_commas(given: str) -> None:
    limits: dict[str, Any] = read_config(["--augment.limits", given]).augment.limits
    assert limits == {"Rotate": 10.0, "ShearX": 0.2}


def test_variants_have_lists_with_commas_too(tmp_path: Path) -> None:
    file = tmp_path / "variants.yaml"
    file.write_text("mine: {augment.exclude: 'Invert,Solarize', augment.limits: {Rotate: 10}}\n")
    found = read_plan(["--methods", "mine", "--variants", str(file)]).methods["mine"].augment
    assert (found.exclude, found.limits) == (["Invert", "Solarize"], {"Rotate": 10.0})


@pytest.mark.parametrize("given", ["Rotate", "Rotate=", "Rotate=10=20", "Rotate=ten"])
def test_limits_without_a_number_are_refused(given: str) -> None:
    with pytest.raises(UserError, match=r"`augment.limits`: expected"):
        read_config(["--augment.limits", given])
