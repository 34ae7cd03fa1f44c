"""Predictions for files, against the model on one file at a time."""

import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from madao.data.image_files import read_image
from madao.errors import UserError
from madao.inference import ImageModel, Preprocessing
from madao.inference.predict import expand_paths, predict_files
from tests.helpers.run_of_photos import photo, save_every_form

CLASSES = ("cat", "dog", "owl", "newt")


def model(task: str = "classification") -> ImageModel:
    torch.manual_seed(0)
    if task == "segmentation":
        network: torch.nn.Module = torch.nn.Conv2d(3, len(CLASSES), 3, padding=1)
    else:
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, len(CLASSES)))
    whole = task == "segmentation"
    return ImageModel(network, Preprocessing(16, 20, (0.5,) * 3, (0.2,) * 3, whole), CLASSES, task).eval()


@pytest.mark.parametrize(("batch_size", "workers"), [(64, 0), (3, 0), (1, 0), (3, 2)])
@torch.no_grad()
def test_every_file_in_its_place(tmp_path: Path, batch_size: int, workers: int) -> None:
    paths = save_every_form(tmp_path)
    found = [*predict_files(model(), paths, top=2, batch_size=batch_size, workers=workers)]
    assert [prediction.path for prediction in found] == paths
    for prediction in found:
        logits = model()(model().preprocessing.decode(prediction.path.read_bytes()))
        shares, places = logits.softmax(0).sort(descending=True)
        assert prediction.classes == tuple(CLASSES[place] for place in places[:2])
        assert prediction.shares == pytest.approx(shares[:2].tolist(), abs=1e-6)
        assert prediction.error is None


@pytest.mark.parametrize(("batch_size", "workers"), [(64, 0), (1, 2)])
def test_unreadable_files_do_not_move_the_others(tmp_path: Path, batch_size: int, workers: int) -> None:
    paths = save_every_form(tmp_path)[:3]
    expected = [*predict_files(model(), paths)]
    (tmp_path / "junk.jpg").write_bytes(b"\xff\xd8\xffjunk")
    (tmp_path / "empty.png").touch()
    os.mkfifo(tmp_path / "pipe.jpg")  # would wait for a writer for ever
    mixed = [tmp_path / "junk.jpg", paths[0], tmp_path / "empty.png", *paths[1:], tmp_path / "pipe.jpg", tmp_path]
    found = [*predict_files(model(), mixed, batch_size=batch_size, workers=workers)]
    read = [prediction for prediction in found if prediction.error is None]
    assert [prediction.classes for prediction in read] == [prediction.classes for prediction in expected]
    assert [prediction.shares for prediction in read] == [pytest.approx(each.shares) for each in expected]
    assert [prediction.path for prediction in found] == mixed
    assert all(prediction.error for prediction in found if prediction.path not in paths)


def test_only_a_few_files_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    photo(0, (30, 30)).save(path)
    read: list[str] = []

    def noted(path: Path) -> bytes:
        read.append(path.name)
        return read_image(path)

    monkeypatch.setattr("madao.inference.predict.read_image", noted)
    predictions = predict_files(model(), [path] * 1000, batch_size=4)
    next(predictions)
    assert len(read) == 4
    assert not torch.is_inference_mode_enabled(), "the caller's code runs as it did before"


def test_more_classes_than_there_are(tmp_path: Path) -> None:
    photo(0, (30, 30)).save(tmp_path / "a.png")
    (found,) = predict_files(model(), [tmp_path / "a.png"], top=99)
    assert sorted(found.classes) == sorted(CLASSES)
    assert sum(found.shares) == pytest.approx(1)


def test_segmentation_gives_shares_of_the_pixels(tmp_path: Path) -> None:
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for number, path in enumerate(paths):
        photo(number, (30 + 9 * number, 47)).save(path)
    for prediction in predict_files(model("segmentation"), paths, top=4):
        with Image.open(prediction.path) as picture:
            mask = model("segmentation")(picture).argmax(0)
        assert mask.shape == (picture.height, picture.width)
        shares = {CLASSES[place]: float((mask == place).double().mean()) for place in range(4)}
        assert dict(zip(prediction.classes, prediction.shares, strict=True)) == pytest.approx(shares)


def test_features_are_no_classes() -> None:
    with pytest.raises(UserError, match="load_model"):
        next(predict_files(model("moco"), []))


def test_files_folders_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["a/1.jpg", "a/deep/2.PNG", "a/.hidden/3.png", "a/text.txt", "b/4.gif", "[c]/5.png", "noending"]
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    for given, expected in [
        (["a"], ["a/1.jpg", "a/deep/2.PNG"]),
        (["b/4.gif", "a", "a/1.jpg", "./b"], ["b/4.gif", "a/1.jpg", "a/deep/2.PNG"]),
        (["**/*.jpg", "?/*.gif"], ["a/1.jpg", "b/4.gif"]),
        (["[c]"], ["[c]/5.png"]),  # a folder of that name, before a pattern
        (["noending"], ["noending"]),
        (["[ab]"], ["a/1.jpg", "a/deep/2.PNG", "b/4.gif"]),
    ]:
        assert [str(path) for path in expand_paths(given)] == expected, given
    Path("none").mkdir()
    for given in (["missing.jpg"], ["*.webp"], ["none"]):
        with pytest.raises(UserError, match=given[0].replace("*", r"\*")):
            expand_paths([*given, "a"])
