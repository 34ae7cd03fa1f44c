"""`madao.fit`: training from Python."""

from typing import Any

from torch import nn

from madao.fitting.result import FitResult


def fit(
    data: Any,
    /,
    model: str | nn.Module | dict[str, Any] | None = None,
    *,
    validation: Any = None,
    test: Any = None,
    quiet: bool = False,
    **settings: Any,
) -> FitResult:
    """Train a model and learn its augmentation policy.

    Args:
        data: A folder or file, as for `madao train`, or a data set that yields `(image, label)`. An image is a PIL
            image, a uint8 array `[H, W, C]`, or a tensor `[C, H, W]`, uint8 or float in [0, 1]. It is neither
            augmented nor normalised.
        model: The name of a model, or a module from normalised images to logits, which is trained in place. A
            dictionary holds the section `model` of the settings. By default a model that suits the images.
        validation: A data set of validation images. By default a tenth of the training images, or the folder's `val/`.
        test: A data set of test images. By default none, or the folder's `test/`.
        quiet: Whether to print nothing.
        **settings: Settings of `madao train`, sections as dictionaries: `epochs=30, optimizer={"lr": 0.05}`. Without
            `out`, the run gets a new folder in `runs/`.

    Returns:
        The model, the policy and the errors.

    Raises:
        UserError: A setting, the data or the model cannot be used.
        Interrupted: Ctrl-C stopped the training. The same call with `out` and `resume=True` continues it.

    Example:
        >>> result = madao.fit("photos/", model="resnet18", epochs=30)  # doctest: +SKIP
        >>> result.model(images).argmax(1), result.policy, result.test_error  # doctest: +SKIP
    """
    from madao.fitting.train import train  # needs what only pip install 'madao[train]' installs

    return train(data, model, validation, test, quiet, settings)
