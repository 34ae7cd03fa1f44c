"""The files of a run that its model is made of."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from madao.config.train_config import from_dict
from madao.errors import DamagedFileError, UserError, first_line
from madao.inference.image_model import ImageModel
from madao.inference.preprocessing import Preprocessing
from madao.training.builders.model import build_named_model
from madao.training.run.artifacts import SAMPLES
from madao.training.run.checkpoint import LAST
from madao.training.run.contents import check_weights
from madao.training.run.directory import RunDirectory
from madao.training.splits import stored_size


class SavedRun:
    """A run directory whose model is used.

    Args:
        path: The run directory.

    Raises:
        UserError: It is no run directory.

    Attributes:
        config: The settings of the run.
    """

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path, writes=False)
        saved = self.directory.saved_config()
        if saved is None:
            raise UserError(f"{path} is not a run directory: it has no config.yaml; give the folder of a training")
        self.config = from_dict(saved)

    def read_checkpoint(self, name: Literal["best", "last"] | None) -> dict[str, Any]:
        """Return the content of a checkpoint; by default of the one that the run evaluated on the test set.

        Raises:
            UserError: There is no such checkpoint, or it cannot be read.
        """
        if (name or self.config.eval_checkpoint) == "best":
            return self.directory.load_best()
        state = self.directory.checkpoints.load()
        if state is None:
            raise UserError(f"{self.directory.path} has no checkpoint yet; wait for the end of its first epoch")
        return check_weights(state, self.directory.checkpoints.folder / LAST)

    def read_statistics(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the mean and standard deviation of each channel that the run was trained with.

        Raises:
            DamagedFileError: The file that holds them is damaged, or of images with other channels.
        """
        path = self.directory.path / "split.json"
        try:
            found = self._read_json(path.name)
            mean, std = (tuple(map(float, found[name])) for name in ("mean", "std"))
        except (LookupError, OSError, TypeError, ValueError) as error:
            reason = first_line(error)
            raise DamagedFileError(f"cannot read mean and std of {path} ({reason}); restore the file") from None
        if len(mean) != channels or len(std) != channels:
            raise DamagedFileError(f"{path} has {len(mean)} means and {len(std)} deviations for {channels} channels")
        return mean, std

    def build(self, state: dict[str, Any], network: nn.Module | None = None) -> ImageModel:
        """Build the model of a checkpoint.

        Args:
            state: The content of the checkpoint.
            network: A module to load the weights into. By default the model that the run names is built.

        Raises:
            UserError: The files of the run do not fit each other.
        """
        try:
            average = state.get("average")
            weights = average["module"] if average else state["model"]
            classes = tuple(map(str, state["classes"]))
            preprocessing = self._read_preprocessing()
            name = self.config.model.name or str(self._read_json("environment.json")["model"])
            if network is None:
                plain = dataclasses.replace(self.config.model, pretrained=False)
                channels, size = preprocessing.channels, preprocessing.size
                network = build_named_model(name, plain, self.config.task, len(classes), channels, size)
            network.load_state_dict(weights)
        except UserError as error:
            raise UserError(f"cannot load the model of {self.directory.path}: {error}") from None
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:300]
            raise UserError(
                f"cannot load the model of {self.directory.path} ({reason}); its files are damaged, or another version "
                "of madao wrote them"
            ) from None
        return ImageModel(network, preprocessing, classes, self.config.task.name, name).eval().requires_grad_(False)

    def _read_json(self, name: str) -> Any:
        return json.loads((self.directory.path / name).read_text(encoding="utf-8"))

    def _read_preprocessing(self) -> Preprocessing:
        record = self._read_json("split.json")
        mean, std = record["mean"], record["std"]
        if not self.config.augment.normalise:
            mean, std = [0.0] * len(mean), [1.0] * len(std)
        size, stored = record.get("size"), record.get("stored_size")
        if size is None:  # older runs show it only by their samples
            with np.load(self.directory.path / SAMPLES, allow_pickle=False) as samples:
                size = int(samples["images"].shape[-1])
            stored = stored_size(self.config.data, size)
        return Preprocessing(size, stored, mean, std, whole=self.config.task.name == "segmentation")
