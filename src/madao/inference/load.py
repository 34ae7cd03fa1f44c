"""Trained models from run directories."""

from pathlib import Path
from typing import Literal

from torch import nn

from madao.inference.image_model import ImageModel

Checkpoint = Literal["best", "last"]


def load_model(
    run: str | Path, checkpoint: Checkpoint | None = None, *, network: nn.Module | None = None
) -> ImageModel:
    """Load the model of a run, with its preprocessing: images of any size in, logits out.

    The model is on the CPU and in evaluation mode. The training images are not needed.

    Args:
        run: The run directory.
        checkpoint: Weights to load: best (best on the validation set) or last (last checkpoint). By default those that
            the run evaluated on the test set.
        network: A module to load the weights into. By default the model that the run names is built.

    Raises:
        UserError: There is no such run or checkpoint, or it is damaged.

    Example:
        >>> model = madao.load_model("runs/photos")  # doctest: +SKIP
        >>> logits = model(images)  # uint8 or float in [0, 1], [B, C, H, W]  # doctest: +SKIP
    """
    from madao.inference.saved_run import SavedRun  # needs what only pip install 'madao[train]' installs

    saved = SavedRun(Path(run))
    state = saved.read_checkpoint(checkpoint)
    return saved.build(state, network)
