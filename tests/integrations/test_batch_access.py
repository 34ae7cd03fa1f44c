import collections
import dataclasses
from typing import Any

import pytest
import torch

from madao.integrations.batch_access import Key, entry, replaced

Named = collections.namedtuple("Named", ["image", "label"])


@dataclasses.dataclass
class Record:
    image: torch.Tensor
    label: torch.Tensor


OLD, LABEL, NEW = torch.zeros(2), torch.ones(2), torch.full((2,), 5.0)
BATCHES: list[tuple[Any, Key, Key]] = [
    ((OLD, LABEL), 0, 1),
    ((LABEL, OLD), -1, 0),
    ([OLD, LABEL], 0, 1),
    ({"image": OLD, "label": LABEL}, "image", "label"),
    (collections.UserDict(image=OLD, label=LABEL), "image", "label"),
    (Named(OLD, LABEL), 0, 1),
    (Named(OLD, LABEL), "image", "label"),
    (Record(OLD, LABEL), "image", "label"),
]


@pytest.mark.parametrize(("batch", "images", "labels"), BATCHES)
def test_a_batch_of_any_kind_gets_other_images_and_keeps_its_own(batch: Any, images: Key, labels: Key) -> None:
    changed = replaced(batch, images, NEW)
    assert type(changed) is type(batch)
    assert entry(changed, images) is NEW
    assert entry(changed, labels) is LABEL
    assert entry(batch, images) is OLD


@pytest.mark.parametrize(
    ("batch", "key"),
    [
        ((OLD,), 1),
        ({"pixels": OLD}, 0),
        ((OLD,), "image"),
        (Record(OLD, LABEL), 0),
        (([OLD], LABEL), 0),
    ],
)
def test_a_missing_entry_is_an_error_with_the_remedy(batch: Any, key: Key) -> None:
    with pytest.raises((ValueError, TypeError), match="images=… and targets=…"):
        entry(batch, key)
