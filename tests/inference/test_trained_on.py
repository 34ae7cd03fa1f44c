"""The check whether evaluated images were trained on."""

import shutil
from pathlib import Path

import pytest
import torch

from madao.cli import main
from madao.data import ImageFiles, InMemoryImages
from madao.inference import trained_on
from madao.inference.trained_on import count_shared
from tests.helpers.image_files import write_image
from tests.helpers.run_of_photos import CLASSES, train, write_photos


def pixels(start: int, stop: int, side: int = 20) -> InMemoryImages:
    images = torch.arange(start, stop, dtype=torch.uint8).reshape(-1, 1, 1, 1).repeat(1, 3, side, side)
    return InMemoryImages(images, torch.zeros(stop - start, dtype=torch.int64))


def files(folder: Path, values: range) -> ImageFiles:
    paths = [folder / f"{value}.png" for value in values]
    for path, value in zip(paths, values, strict=True):
        write_image(path, value)
    return ImageFiles(paths, torch.zeros(len(paths), dtype=torch.int64), 8)


def test_pixels_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_shared(pixels(0, 10), pixels(7, 20)) == (3, 13)
    assert count_shared(pixels(0, 10), pixels(10, 20)) == (0, 10)
    monkeypatch.setattr(trained_on, "_EVALUATED", 5)
    assert count_shared(pixels(0, 10), pixels(0, 10)) == (5, 5)


def test_files_are_compared_by_content_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, other = files(tmp_path / "a", range(10)), files(tmp_path / "b", range(7, 20))
    assert count_shared(trained, other) == (3, 13)
    read: list[int] = []
    content = ImageFiles.read

    def noted(images: ImageFiles, index: int) -> bytes:
        read.append(index)
        return content(images, index)

    monkeypatch.setattr(ImageFiles, "read", noted)
    long = files(tmp_path / "long", range(1))
    (tmp_path / "long" / "0.png").write_bytes(b"longer than each of the others" * 99)
    assert count_shared(trained, long) == (0, 1)
    assert read == [0]  # none of the training files, which are shorter
    trained.paths[0].unlink()
    assert count_shared(trained, other) == (3, 13)


def test_images_of_other_kinds_are_not_compared(tmp_path: Path) -> None:
    assert count_shared(pixels(0, 3), files(tmp_path, range(3))) == (0, 0)
    assert count_shared(pixels(0, 3), None) == (0, 0)


@pytest.mark.parametrize("cache_gib", ["8", "0"])
def test_evaluate_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str], cache_gib: str) -> None:
    photos, run = write_photos(tmp_path / "photos"), tmp_path / "run"
    train(photos, run, "small-cnn", epochs=1)
    config = (run / "config.yaml").read_text().replace("cache_gib: 8.0", f"cache_gib: {cache_gib}")
    (run / "config.yaml").write_text(config)
    capsys.readouterr()
    assert main(["evaluate", str(run)]) == 0
    assert capsys.readouterr().err == ""
    # a copy, in which half of the test images of the first class are training images
    copy = tmp_path / "copy"
    shutil.copytree(photos, copy)
    shutil.rmtree(copy / "test")
    for name in CLASSES:
        shutil.copytree(copy / "val" / name, copy / "test" / name)
    for number in range(2):
        shutil.copy(photos / "train" / CLASSES[0] / f"{number}.png", copy / "test" / CLASSES[0] / f"again{number}.png")
    assert main(["evaluate", str(run), "--root", str(copy)]) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert "2 of 8 test images" in warning
    assert main(["evaluate", str(run), "--root", str(photos / "train"), "--split", "validation"]) == 0
    assert "3 of 3 validation images" in capsys.readouterr().err
    shutil.rmtree(photos)  # nothing to compare with is no error
    assert main(["evaluate", str(run), "--root", str(copy)]) == 0
    assert capsys.readouterr().err == ""
