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
    ("batch", "key", "message"),
    [
        ((OLD,), 1, "no entry 1: it is a tuple of 1"),
        ({"pixels": OLD}, 0, "no entry 0: it is a dict of 'pixels'"),
        ((OLD,), "image", "no entry 'image'"),
        (Record(OLD, LABEL), 0, "no entry 0: it is a Record"),
        (([OLD], LABEL), 0, "must be a tensor, got list"),
    ],
)
def test_a_missing_entry_is_named_with_the_remedy(batch: Any, key: Key, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"{message}.*images=… and targets=…"):
        entry(batch, key)
