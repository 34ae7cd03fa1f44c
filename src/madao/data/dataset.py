"""Data sets and requests for them."""

import dataclasses
from pathlib import Path

from madao.data.image_formats import MAX_PIXELS
from madao.data.images import Images
from madao.data.lazy_images import OnError, SkippedImage
from madao.errors import DataError


@dataclasses.dataclass(frozen=True)
class DatasetRequest:
    """A request for a data set: the argument of every function in `DATASETS`.

    Attributes:
        root: The folder or file that holds the data.
        download: Whether to download missing data.
        side: Side of the stored squares in pixels. By default the data set's own, or 256 for files of any size.
        on_error: Whether to "stop" at a file that cannot be read, or to "skip" it.
        shift: For `digits` and `shapes`: the shift between training images and the others, see
            `madao.data.datasets.synthetic_shift`.
        max_pixels: Largest number of pixels to decode. Larger images are decoded smaller or left out.
    """

    root: Path
    download: bool = False
    side: int | None = None
    on_error: OnError = "stop"
    shift: str = "none"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if self.side is not None and self.side < 1:
            raise DataError(f"side must be at least 1, got {self.side}")


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test images.

    Attributes:
        name: Name of the data set in configurations.
        classes: Class names in the order of the labels.
        train: The training images.
        validation: The validation images, if the data set has a validation split.
        test: The test images, if the data set has a test split.
        flip: Whether a mirrored image keeps its class.
        whole: Whether the model sees the stored images whole, rather than crops of `data.size`.
        skipped: Images and folders that could not be read and were left out.
        notes: Lines for people about files that were not used as they may expect.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    validation: Images | None
    test: Images | None
    flip: bool
    whole: bool = False
    skipped: tuple[SkippedImage, ...] = ()
    notes: tuple[str, ...] = ()
