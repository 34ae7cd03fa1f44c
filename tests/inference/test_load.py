"""Loaded models, against the evaluation of the same run on the same files."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import madao
from madao.cli import main
from madao.config.train_config import AugmentConfig, DataConfig, ModelConfig, TaskConfig
from madao.errors import DataError, UserError
from madao.files import load_torch, save_torch
from madao.inference import ImageModel
from madao.training.builders.run import build_run
from tests.helpers.run_of_photos import CLASSES, NAMES, save_every_form, train, write_photos
from tests.helpers.training import settings, splits, trained


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(photos, tmp_path_factory.mktemp("runs") / "photos", "small-cnn")


def files_and_labels(photos: Path) -> list[tuple[Path, int]]:
    return [(path, CLASSES.index(path.parent.name)) for path in sorted((photos / "test").rglob("*.*"))]


@torch.no_grad()
def loss_and_errors(model: ImageModel, photos: Path) -> tuple[float, int]:
    """Sum of the losses and number of errors, file by file."""
    loss, errors = 0.0, 0
    for path, label in files_and_labels(photos):
        logits = model(model.preprocessing.decode(path.read_bytes()))
        loss += float(F.cross_entropy(logits[None], torch.tensor([label])).double())
        errors += int(logits.argmax()) != label
    return loss, errors


MODELS: dict[str, dict[str, Any]] = {
    "small-cnn": {},
    "resnet18": {"size": 32},
    "timm/test_resnet": {"size": 32},
    "an average of the weights": {"model": "small-cnn", "ema": 0.5},
    "without normalising": {"model": "small-cnn", "augment": AugmentConfig(method="uniform", normalise=False)},
    "resized crops": {"model": "small-cnn", "augment": AugmentConfig(method="base", crop="resized")},
}


@pytest.mark.parametrize("name", MODELS)
def test_results_equal_the_evaluation_of_the_run(name: str, photos: Path, tmp_path: Path) -> None:
    """On files in every form: grey, transparent, palette, CMYK, turned, and larger than Pillow decodes whole."""
    out = train(photos, tmp_path / "run", **{"model": name, **MODELS[name]})
    result = json.loads((out / "result.json").read_text())
    files = files_and_labels(photos)
    loss, errors = loss_and_errors(madao.load_model(out), photos)
    assert errors == round(result["test_error"] * len(files))
    assert loss / len(files) == pytest.approx(result["test_loss"], rel=1e-5)


def test_the_input_of_the_network_equals_that_of_evaluation_to_the_bit(run: Path, photos: Path) -> None:
    """In both: a file decoded, cut, resized, cut again and normalised."""
    config = DataConfig(root=str(photos), size=24, workers=0)
    built = build_run(settings(run.parent / "other", "base", data=config))
    assert built.splits.test is not None
    images, _ = built.splits.test.load(range(len(built.splits.test)))
    expected = built.base_augmentation.normalise(built.base_augmentation.centre(images))
    model = madao.load_model(run)
    found = [model.preprocessing.decode(path.read_bytes()) for path, _ in files_and_labels(photos)]
    assert torch.equal(model.preprocessing(torch.stack(found)), expected)


def test_the_module_knows_what_it_is(run: Path) -> None:
    model = madao.load_model(str(run))
    assert isinstance(model, nn.Module)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.classes == NAMES
    assert (model.task, model.architecture) == ("classification", "small-cnn")
    assert (model.preprocessing.size, model.preprocessing.stored_size) == (24, 27)


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_images_of_any_size_and_number_of_channels(run: Path, kind: torch.dtype) -> None:
    model = madao.load_model(run)
    for shape in [(4, 3, 24, 24), (1, 3, 300, 200), (2, 3, 5, 9), (3, 1, 40, 40)]:
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        given = images if kind == torch.uint8 else images.to(kind) / 255
        outputs = model(given)
        assert outputs.shape == (shape[0], 3)
        assert outputs.dtype == torch.float32
        assert torch.allclose(model(given[0]), outputs[0], atol=1e-6)
        if shape[1] == 1:
            assert torch.allclose(model(given.expand(-1, 3, -1, -1)), outputs, atol=1e-6)
        # floats are not rounded to levels after resizing
        assert torch.allclose(model(images), outputs, atol=0.05)


def test_floats_carry_a_gradient_and_grey_levels_do_not_matter(run: Path) -> None:
    images = torch.rand(2, 3, 50, 40, generator=torch.Generator().manual_seed(1), requires_grad=True)
    madao.load_model(run)(images).sum().backward()
    assert images.grad is not None
    assert float(images.grad.abs().sum()) > 0


def test_pictures_of_pillow_equal_their_files(run: Path, tmp_path: Path) -> None:
    model = madao.load_model(run)
    for path in save_every_form(tmp_path):
        if path.name == "large.jpg":  # only files are decoded at a part of their size
            continue
        with Image.open(path) as picture:
            found = model(picture)
        expected = model(model.preprocessing.decode(path.read_bytes()))
        assert found.shape == (3,)
        # torchvision and Pillow decode small JPEG files; turning after cutting may cut one pixel elsewhere
        assert torch.allclose(found, expected, atol=0.02), path.name
    pictures = [Image.new("RGB", size, "red") for size in ((30, 40), (90, 20))]
    assert model(pictures).shape == (2, 3)
    assert torch.equal(model([pictures[0]])[0], model(pictures[0]))


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 4, 8, 8),
        torch.zeros(8, 8),
        torch.full((1, 3, 8, 8), 255.0),
        torch.zeros(1, 3, 8, 8, dtype=torch.int64),
        torch.zeros(1, 3, 0, 8),
        [],
    ],
    ids=lambda images: str(getattr(images, "shape", images)),
)
def test_other_images_are_refused(run: Path, images: Tensor) -> None:
    with pytest.raises((ValueError, TypeError)):
        madao.load_model(run)(images)


def test_grey_models_take_colours(tmp_path: Path) -> None:
    run = trained(settings(tmp_path / "run", "base"), splits())
    model = madao.load_model(tmp_path / "run")
    assert model.preprocessing.channels == 1
    assert run.splits.test is not None
    (images, _), labels = run.splits.test.load(range(30)), run.splits.test.labels
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert float((model(images).argmax(1) != labels).double().mean()) == pytest.approx(result["test_error"])
    assert torch.equal(model(images.expand(-1, 3, -1, -1)), model(images))
    file = io.BytesIO()
    colours = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(colours).save(file, "PNG")
    grey = torch.from_numpy(np.array(Image.fromarray(colours).convert("L")))
    assert torch.equal(model(model.preprocessing.decode(file.getvalue())), model(grey[None]))


def test_best_and_last_weights(tmp_path: Path) -> None:
    trained(settings(tmp_path / "run", "base"), splits())
    last = load_torch(tmp_path / "run" / "checkpoints" / "last.pt")["model"]
    best = tmp_path / "run" / "checkpoints" / "best.pt"
    changed = load_torch(best)
    changed["model"] = {name: tensor + 1 for name, tensor in last.items()}
    save_torch(best, changed)
    weights = {name: madao.load_model(tmp_path / "run", name).network.state_dict() for name in ("best", "last")}
    assert all(torch.equal(weights["last"][name], tensor) for name, tensor in last.items())
    assert all(torch.equal(weights["best"][name], tensor + 1) for name, tensor in last.items())
    assert torch.equal(madao.load_model(tmp_path / "run").network.state_dict()["head.bias"], last["head.bias"])


def test_a_network_of_the_caller_takes_the_weights(run: Path) -> None:
    network = madao.models.build("small-cnn", 3, 3, 24)
    assert madao.load_model(run, network=network).network is network
    images = torch.zeros(1, 3, 24, 24, dtype=torch.uint8)
    assert torch.equal(madao.load_model(run, network=network)(images), madao.load_model(run)(images))


def test_runs_that_did_not_record_sizes(run: Path, tmp_path: Path) -> None:
    """Runs of before this was recorded show them by their samples and settings."""
    record = json.loads((run / "split.json").read_text())
    expected = madao.load_model(run)
    try:
        (run / "split.json").write_text(json.dumps({k: v for k, v in record.items() if "size" not in k}))
        found = madao.load_model(run)
    finally:
        (run / "split.json").write_text(json.dumps(record))
    assert found.preprocessing.size == expected.preprocessing.size == 24
    assert found.preprocessing.stored_size == expected.preprocessing.stored_size == 27


def test_segmentation_returns_masks_at_the_size_of_the_images(tmp_path: Path) -> None:
    data = DataConfig("shapes")
    out = train(None, tmp_path / "run", None, data=data, task=TaskConfig("segmentation"), batch_size=100, epochs=1)
    model = madao.load_model(out)
    images = torch.randint(0, 256, (2, model.preprocessing.channels, 40, 60), dtype=torch.uint8)
    assert model(images).shape == (2, len(model.classes), 40, 60)
    run = build_run(
        settings(tmp_path / "other", "base", data=data, task=TaskConfig("segmentation"), model=ModelConfig())
    )
    assert run.splits.test is not None
    images, masks = run.splits.test.images, run.splits.test.targets  # type: ignore[attr-defined]
    wrong = (model(images).argmax(1) != masks)[masks != 255].double().mean()
    result = json.loads((out / "result.json").read_text())
    assert float(wrong) == pytest.approx(result["test_metrics"]["pixel_error"], abs=1e-6)
    with pytest.raises(DataError, match="2 sizes"):
        model([torch.zeros(1, 20, 20), torch.zeros(1, 20, 30)])


def test_moco_returns_features(tmp_path: Path) -> None:
    moco = TaskConfig("moco", queue=256)
    out = train(None, tmp_path / "run", "small-cnn", data=DataConfig(workers=0), task=moco, batch_size=128, epochs=1)
    model = madao.load_model(out)
    images = torch.randint(0, 256, (2, 1, 16, 16), dtype=torch.uint8)
    assert model(images).shape == (2, 32)
    assert torch.equal(model(images), model.network.features(model.preprocessing(images)))  # type: ignore[operator]


def _damage(name: str, content: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: (run / "config.yaml").unlink(),
        lambda run: (run / "split.json").unlink(),
        _damage("split.json", "{"),
        _damage("split.json", '{"mean": [0.5], "std": [0], "size": 16, "stored_size": 16}'),
        _damage("split.json", '{"mean": 3, "std": [1], "size": 16, "stored_size": 16}'),
        lambda run: save_torch(run / "checkpoints" / "last.pt", {"classes": ["a"], "model": {}}),
        lambda run: save_torch(run / "checkpoints" / "last.pt", {"model": {}}),
        lambda run: save_torch(run / "checkpoints" / "last.pt", [1]),
        lambda run: (run / "checkpoints" / "last.pt").unlink(),
    ],
)
def test_damaged_runs_are_refused(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    trained(settings(tmp_path / "run", "base", epochs=1), splits())
    damage(tmp_path / "run")
    with pytest.raises(UserError, match="run"):
        madao.load_model(tmp_path / "run")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path)]) == 2
