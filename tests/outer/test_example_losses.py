"""Which examples pass together in an outer step."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from madao.distributed.group import Shard
from madao.outer.example_losses import Microbatches, augmented_examples, per_example, validation_examples


@pytest.mark.parametrize(
    ("count", "smooth", "microbatch", "sizes", "derived"),
    [
        (2048, 128, 128, [128] * 16, 1),
        (8, 8, 5, [4, 4], 2),  # of one size, so that one of them is compiled
        (32, 32, 12, [12, 12, 8], 3),  # which four divides still, as MoCo's splits may have to
        (20, 7, 5, [5, 2, 5, 5, 3], 2),
        (20, 7, None, [7, 13], 1),
        (1, 1, 64, [1], 1),
    ],
)
def test_parts(count: int, smooth: int, microbatch: int | None, sizes: list[int], derived: int) -> None:
    images, labels = torch.rand(count, 3, 2, 2), torch.arange(count)
    passes = Microbatches(per_example(F.cross_entropy), nn.Flatten(), microbatch, None, 0)
    places = Shard(0, count, 2 * count), Shard(0, smooth, 2 * smooth)  # as where another process has as many
    terms = passes.terms("eval", augmented_examples(0, labels), *places)
    given = [term.of((images,)) for term in terms if term.of is not None]
    assert [len(part[0]) for part in given] == sizes
    assert torch.equal(torch.cat([part[0] for part in given]), images)
    assert torch.equal(torch.cat([part[1] for part in given]), labels)
    assert [term.weight for term in terms] == pytest.approx([size / (2 * count) for size in sizes])
    expected = [size / (2 * smooth) if number < derived else 0.0 for number, size in enumerate(sizes)]
    assert [term.pathwise for term in terms] == pytest.approx(expected)


def test_targets_that_move_are_behind_their_images() -> None:
    images, targets, others = torch.rand(4, 2), torch.rand(4), torch.rand(4, 2)
    found = augmented_examples(1, None)(slice(1, 3), (others, images, targets))
    assert torch.equal(found[0], images[1:3])
    assert torch.equal(found[1], targets[1:3])


def test_validation_images_do_not_depend_on_inputs() -> None:
    images = torch.tensor([[0], [51], [255]], dtype=torch.uint8)
    found = validation_examples(images, torch.arange(3), lambda x: 2 * x)(slice(1, 3), ())
    torch.testing.assert_close(found[0], torch.tensor([[0.4], [2.0]]))
    assert found[1].tolist() == [1, 2]
