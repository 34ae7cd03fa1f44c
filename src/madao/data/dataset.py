"""A data set, and how one is asked for."""

import dataclasses
from pathlib import Path

from madao.data.encoded import OnError
from madao.data.images import Images
from madao.errors import DataError


@dataclasses.dataclass(frozen=True)
class DatasetRequest:
    """How a data set is asked for.

    Attributes:
        root: Where it lies.
        download: Whether to fetch it when it is not there.
        side: Side of the stored square; None: the data set's own, 256 for files of any size.
        on_error: What a file that cannot be read does: stop, or be left out.
        planted: Of `digits`: the shift between training digits and the others, see `madao.data.datasets.synthetic_shift.SHIFTS`.
    """

    root: Path
    download: bool = False
    side: int | None = None
    on_error: OnError = "stop"
    planted: str = "none"

    def __post_init__(self) -> None:
        if self.side is not None and self.side < 1:
            raise DataError(f"--data.side must be at least 1, got {self.side}")


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Images to learn from and to be measured by.

    Attributes:
        name: What it is called on the command line.
        classes: Their names, in the order of the labels.
        train: What to learn from.
        validation: A split of its own for choosing, if it comes with one.
        test: What to be measured by, if it comes with it.
        flip: Whether a mirrored image means the same.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    validation: Images | None
    test: Images | None
    flip: bool
