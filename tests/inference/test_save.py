"""Files of models, loaded by programs that cannot import madao."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from madao.errors import ModelError, UserError
from madao.inference import ImageModel, Preprocessing
from madao.inference.save import FORMATS, describe_model, save_model
from madao.models import build, build_dense, build_encoder

_WITHOUT_MADAO = """
import json
import sys
from pathlib import Path
import numpy as np
import torch

class Refuse:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "madao":
            raise ImportError("madao is blocked")

sys.meta_path.insert(0, Refuse())

def read_pt2(path):
    extra = {"madao.json": ""}
    model = torch.export.load(path, extra_files=extra).module()
    return lambda images: model(torch.from_numpy(images)), json.loads(extra["madao.json"])

def read_onnx(path):
    import onnxruntime
    session = onnxruntime.InferenceSession(path)
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["madao"])
    return lambda images: session.run(None, {"images": images})[0], metadata

def read_safetensors(path):
    import torch.nn.functional as F
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(path, "pt") as file:
        metadata = json.loads(file.metadata()["madao"])
    name, classes, size = metadata["architecture"], len(metadata["classes"]), metadata["size"]
    masks = metadata["task"] == "segmentation"
    if name.startswith("timm/"):
        import timm
        network = timm.create_model(
            name.removeprefix("timm/"), num_classes=classes, **({"img_size": size} if "vit" in name else {})
        )
    else:
        from torchvision.models import get_model
        network = get_model(name, weights=None, num_classes=classes, **({"weights_backbone": None} if masks else {}))
    if metadata["task"] == "moco":
        network.fc = torch.nn.Identity()
    network.load_state_dict(load_file(path))
    network.eval()

    def run(images):
        images = torch.from_numpy(images)
        if not masks:
            height, width = images.shape[2:]
            side = min(height, width)
            images = images[..., (height - side) // 2 :, (width - side) // 2 :][..., :side, :side]
            images = F.interpolate(images, size=metadata["resize"], mode="bilinear", antialias=True)
            edge = (metadata["resize"] - size) // 2
            images = images[..., edge : edge + size, edge : edge + size]
        mean, std = (torch.tensor(metadata[name]).reshape(-1, 1, 1) for name in ("mean", "std"))
        outputs = network((images / 255 - mean) / std)
        return outputs["out"] if masks else outputs

    return run, metadata

folder = Path(sys.argv[1])
images = np.load(folder / "images.npz")
for path in map(Path, sys.argv[2:]):
    run, metadata = globals()["read_" + path.suffix[1:]](str(path))
    with torch.no_grad():
        outputs = {name: np.asarray(run(images[name])) for name in images.files}
    np.savez(folder / f"{path.suffix[1:]}.npz", metadata=json.dumps(metadata), **outputs)
assert not any(name.split(".")[0] == "madao" for name in sys.modules)
"""


def load_elsewhere(folder: Path, paths: list[Path], images: dict[str, Tensor]) -> None:
    """Load files in a process that cannot import madao; write outputs and metadata of each to an .npz file."""
    np.savez(folder / "images.npz", **{name: batch.numpy() for name, batch in images.items()})  # type: ignore[arg-type]
    command = [sys.executable, "-W", "ignore", "-c", _WITHOUT_MADAO, str(folder), *map(str, paths)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def built(network: nn.Module, channels: int, size: int, task: str, name: str | None) -> ImageModel:
    """A model whose norms have seen something."""
    preprocessing = Preprocessing(
        size, round(size * 256 / 224), (0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels], task == "segmentation"
    )
    generator = torch.Generator().manual_seed(0)
    network.train()(torch.randn(8, channels, size, size, generator=generator))
    return ImageModel(network, preprocessing, ("a", 'b "," é', "c"), task, name).eval()


def make(name: str) -> ImageModel:
    torch.manual_seed(0)
    match name:
        case "grey":
            return built(build("small-cnn", 3, 1, 16), 1, 16, "classification", "small-cnn")
        case "moco":
            return built(build_encoder("resnet18", 8, 3, 72), 3, 72, "moco", "resnet18")
        case "small-fcn":
            return built(build_dense("small-fcn", 3, 3, 28), 3, 28, "segmentation", "small-fcn")
        case "lraspp_mobilenet_v3_large":
            return built(build_dense(name, 3, 3, 64), 3, 64, "segmentation", name)
        case _:
            size = 72 if name.startswith("resnet") else 64
            return built(build(name, 3, 3, size), 3, size, "classification", name)


ONNX = [] if importlib.util.find_spec("onnxruntime") is None else [".onnx"]
CASES = {
    "resnet18": [".safetensors", ".pt2", *ONNX],
    "timm/test_resnet": [".safetensors", ".pt2", *ONNX],
    "timm/test_vit": [".safetensors", ".pt2", *ONNX],
    "grey": [".pt2", *ONNX],
    "moco": [".safetensors", *ONNX],
    "small-fcn": [".pt2", *ONNX],
    "lraspp_mobilenet_v3_large": [".safetensors"],
}
SLOW = ("moco", "lraspp_mobilenet_v3_large")


def sloped(count: int, channels: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Noise that gets lighter to the lower right, so that every cut has other outputs."""
    noise = torch.randint(0, 60, (count, channels, height, width), generator=generator, dtype=torch.uint8)
    slope = torch.linspace(0, 95, height)[:, None] + torch.linspace(0, 95, width)
    return noise + slope.to(torch.uint8)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES])
def test_a_program_without_madao_computes_the_same(name: str, tmp_path: Path) -> None:
    model = make(name)
    paths = [tmp_path / "models" / f"model{suffix}" for suffix in CASES[name]]
    for path in paths:
        assert save_model(model, path) is FORMATS[path.suffix]
    assert sorted((tmp_path / "models").iterdir()) == sorted(paths)
    side, channels = model.preprocessing.stored_size, model.preprocessing.channels
    shapes = {"square": (3, side, side), "one": (1, side, side)}
    if model.task != "segmentation":
        shapes |= {"wide": (2, side + 31, 2 * side), "tall": (5, 3 * side, side), "small": (1, 9, 12)}
    generator = torch.Generator().manual_seed(1)
    images = {key: sloped(count, channels, height, width, generator) for key, (count, height, width) in shapes.items()}
    load_elsewhere(tmp_path, paths, images)
    for path in paths:
        found = np.load(tmp_path / f"{path.suffix[1:]}.npz")
        assert json.loads(str(found["metadata"])) == describe_model(model)
        for key, batch in images.items():
            with torch.no_grad():
                expected = model(batch)
            assert found[key].shape == expected.shape
            # Resized pixels may differ by a level.
            near = (1e-4 if key in ("square", "one") else 0.012) * float(expected.abs().max().clamp(min=1))
            assert torch.allclose(torch.from_numpy(found[key]), expected, atol=near), (path, key)


def test_a_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = make("grey").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for suffix in (".safetensors", ".pt2"):
        save_model(model, tmp_path / f"x{suffix}")
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert "_guards_fn" not in dict(model.named_modules())


def test_tied_weights_are_written(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 4))
    network[2].weight = network[1].weight
    model = ImageModel(network, Preprocessing(2, 2, (0.5,), (0.5,)), "abcd")
    save_model(model, tmp_path / "tied.safetensors")
    from safetensors.torch import load_file

    assert load_file(tmp_path / "tied.safetensors").keys() == network.state_dict().keys()


class Untraceable(nn.Module):
    """A network whose path depends on values."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) if float(images.sum()) > 0 else images.sum((2, 3))


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_networks_that_cannot_be_written_are_refused(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime") if suffix == ".onnx" else None
    model = ImageModel(Untraceable(), Preprocessing(8, 8, (0.5,) * 3, (0.5,) * 3), "abc")
    with pytest.raises(ModelError, match="safetensors"):
        save_model(model, tmp_path / f"model{suffix}")
    assert not [*tmp_path.iterdir()]


def test_unknown_formats_and_missing_packages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"\.onnx"):
        save_model(make("grey"), tmp_path / "model.h5")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"madao\[onnx\]"):
        save_model(make("grey"), tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]
