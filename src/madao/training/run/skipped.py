"""The images that a run left out because they could not be read."""

import csv
import io
from collections.abc import Callable

import torch

from madao.data import GpuDecodedImages, LazyImages
from madao.data.lazy_images import SkippedImage
from madao.distributed.group import ProcessGroup
from madao.training.run.directory import RunDirectory
from madao.training.splits import SKIPPED_FILE, Splits, describe_skipped


class SkippedRecord:
    """The list of the images that a run left out, in skipped.csv.

    Images that fit into memory are read before training; the others are noticed when a batch needs them.

    Args:
        directory: The files of the run.
        splits: The images of the run.
        ranks: The processes of the run, each of which reads a part of the images.
        device: The device of this process.
        say: Shows a line.
    """

    def __init__(
        self,
        directory: RunDirectory,
        splits: Splits,
        ranks: ProcessGroup,
        device: torch.device,
        say: Callable[[str], None],
    ) -> None:
        self._directory, self._splits, self._ranks, self._device, self._say = directory, splits, ranks, device, say
        self._described: dict[tuple[int, int], SkippedImage] = {}

    def update(self) -> None:
        """Add images that were left out since the last call to the list, and say how many there are now."""
        lazy = [
            images
            for images in (self._splits.train, self._splits.validation, self._splits.test)
            if isinstance(images, LazyImages | GpuDecodedImages)
        ]
        for number, images in enumerate(lazy):
            for index in self._indices(images):
                if (number, index) not in self._described:
                    self._described[number, index] = _files(images).describe_skipped(index)
        listed = self._listed()
        found = listed | {*self._splits.skipped, *self._described.values()}
        if found == listed:
            return
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerows([("image", "reason"), *((image.name, image.reason) for image in sorted(found))])
        self._directory.write(SKIPPED_FILE, text.getvalue())
        if self._described:  # the others were mentioned before training
            self._say(describe_skipped(found))

    def _listed(self) -> set[SkippedImage]:
        """Return the images in the list, which a run that was resumed may have begun."""
        try:
            text = (self._directory.path / SKIPPED_FILE).read_text(encoding="utf-8", errors="replace")
            return {SkippedImage(*row) for row in list(csv.reader(io.StringIO(text)))[1:] if len(row) == 2}
        except (OSError, csv.Error):
            return set()

    def _indices(self, images: LazyImages | GpuDecodedImages) -> list[int]:
        """Return the indices of the images that any process left out."""
        if self._ranks.world == 1:
            return sorted(images.skipped)
        skipped = torch.zeros(len(images), dtype=torch.uint8, device=self._device)
        skipped[sorted(images.skipped)] = 1
        return self._ranks.all_reduce_max(skipped).nonzero().flatten().tolist()


def _files(images: LazyImages | GpuDecodedImages) -> LazyImages:
    return images.images if isinstance(images, GpuDecodedImages) else images
