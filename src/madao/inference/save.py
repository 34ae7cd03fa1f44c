"""Models as files that programs without madao load."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from madao.errors import ModelError, UserError, first_line
from madao.files import replacing
from madao.inference.image_model import ImageModel
from madao.inference.preprocessing import Preprocessing


@dataclasses.dataclass(frozen=True)
class ModelFormat:
    """A format of model files.

    Attributes:
        needs: Packages that load the file.
        encode: Returns the content of the file.
        usage: Lines that load the file, with `{file}` for its path.
    """

    needs: str
    encode: Callable[[ImageModel], bytes]
    usage: tuple[str, ...]


def save_model(model: ImageModel, path: str | Path) -> ModelFormat:
    """Write a model to a file that programs without madao load. Its ending decides the format.

    `.safetensors` holds the weights of the network. `.pt2` (`torch.export`) and `.onnx` hold the network with its
    preprocessing, for uint8 batches `[B, C, H, W]`. All hold the metadata of `describe_model`.

    Args:
        model: The model.
        path: The file to write.

    Returns:
        The format.

    Raises:
        UserError: The format is unknown, or a package is missing.
        ModelError: The network cannot be written in this format.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UserError(f"cannot write a model to {path}; expected a file that ends in {', '.join(FORMATS)}")
    found = FORMATS[path.suffix]
    device, training = model.preprocessing.mean.device, model.training
    try:
        content = found.encode(model.cpu().eval())
    finally:
        model.to(device).train(training)
    with replacing(path) as file:
        file.write(content)
    return found


def describe_model(model: ImageModel) -> dict[str, Any]:
    """Return a description of a network for other programs: architecture, classes and preparation of images."""
    preprocessing = model.preprocessing
    return {
        "architecture": model.architecture,
        "task": model.task,
        "classes": list(model.classes),
        "channels": preprocessing.channels,
        "resize": preprocessing.stored_size,
        "size": preprocessing.size,
        "mean": preprocessing.mean.flatten().tolist(),
        "std": preprocessing.std.flatten().tolist(),
    }


class _Traceable(nn.Module):
    """An `ImageModel` for uint8 batches in operations that every format has, for any number and size of images.

    Cutting and resizing are two products with matrices, whose weights depend on the size of the images. They are those
    of bilinear resizing with antialiasing.
    """

    def __init__(self, model: ImageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs for uint8 images `[B, C, H, W]`."""
        preprocessing = self.model.preprocessing
        if preprocessing.whole:
            return self.model.outputs(preprocessing.normalise(images), images.shape[2:])
        height, width = images.shape[2:]
        side = torch.minimum(*(torch.full((), length, dtype=torch.float32) for length in (height, width)))
        rows, columns = (_resize_weights(length, side, preprocessing) for length in (height, width))
        squares = (rows @ images.float() @ columns.T).round().clamp(0, 255)
        return self.model.outputs(preprocessing.normalise(squares / 255), squares.shape[2:])


def _resize_weights(length: int, side: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Return the weights of `length` pixels in each pixel of the network's input, `[size, length]`.

    Args:
        length: Height or width of the image.
        side: Side of its central square.
        preprocessing: The sizes.
    """
    size, stored = preprocessing.size, preprocessing.stored_size
    scale = side / stored
    start = torch.floor((torch.full((), length, dtype=torch.float32) - side) / 2)
    here = torch.arange(length, dtype=torch.float32) + 0.5 - start
    centres = (torch.arange(size, dtype=torch.float32) + 0.5 + (stored - size) // 2) * scale
    weights = (1 - (here - centres[:, None]).abs() / scale.clamp(min=1)).clamp(min=0)
    weights = weights * ((here > 0) & (here < side))
    return weights / weights.sum(1, keepdim=True)


def _safetensors(model: ImageModel) -> bytes:
    from safetensors.torch import save

    network: Any = model.network
    if model.task == "moco":
        network = network.backbone
    elif model.task == "segmentation" and isinstance(getattr(network, "model", None), nn.Module):
        network = network.model  # torchvision's own, inside the module that takes the logits from its dictionary
    # Copies: the format refuses tensors that share memory.
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in network.state_dict().items()}
    return save(weights, {"format": "pt", "madao": json.dumps(describe_model(model))})


def _example(model: ImageModel) -> tuple[Tensor, dict[int, Any]]:
    """Return a batch of images to trace with, and the dimensions that may differ from it."""
    preprocessing, any_length = model.preprocessing, torch.export.Dim.DYNAMIC
    side = preprocessing.stored_size
    if preprocessing.whole:
        return torch.zeros(2, preprocessing.channels, side, side, dtype=torch.uint8), {0: any_length}
    # Height, width and side differ, so that no two of them become one dimension.
    images = torch.zeros(2, preprocessing.channels, side + 5, side + 3, dtype=torch.uint8)
    return images, {0: any_length, 2: any_length, 3: any_length}


@contextlib.contextmanager
def _exporting(kind: str) -> Iterator[None]:
    """Silence the exporters of torch, and raise their many errors as one kind."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # torch's exporters raise errors of many types
        raise ModelError(
            f"torch cannot write this network as {kind} ({first_line(error)}); try .safetensors"
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _pt2(model: ImageModel) -> bytes:
    images, dimensions = _example(model)
    file = io.BytesIO()
    with _exporting(".pt2"):
        program = torch.export.export(_Traceable(model), (images,), dynamic_shapes=(dimensions,))
        torch.export.save(program, file, extra_files={"madao.json": json.dumps(describe_model(model))})
    return file.getvalue()


def _onnx(model: ImageModel) -> bytes:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"{' and '.join(missing)} must be installed to write ONNX files: pip install 'madao[onnx]'")
    images, dimensions = _example(model)
    with _exporting(".onnx"):
        program: Any = torch.onnx.export(
            _Traceable(model),
            (images,),
            dynamo=True,
            dynamic_shapes=(dimensions,),
            input_names=["images"],
            output_names=["outputs"],
            verbose=False,
        )
        proto = program.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = "madao", json.dumps(describe_model(model))
    content: bytes = proto.SerializeToString()
    return content


FORMATS = {
    ".safetensors": ModelFormat(
        "safetensors, and a network of the same architecture",
        _safetensors,
        ("from safetensors.torch import load_file", 'network.load_state_dict(load_file("{file}"))'),
    ),
    ".pt2": ModelFormat(
        "torch",
        _pt2,
        ('model = torch.export.load("{file}").module()', "outputs = model(images)  # uint8 [B, C, H, W]"),
    ),
    ".onnx": ModelFormat(
        "onnxruntime",
        _onnx,
        (
            'session = onnxruntime.InferenceSession("{file}")',
            '(outputs,) = session.run(None, {{"images": images}})  # uint8 [B, C, H, W]',
        ),
    ),
}
"""The formats by the endings of their files."""
