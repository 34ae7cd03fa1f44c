"""Draws as values."""

import pytest
import torch

from madao import Draw, Policy


def relaxed_draw() -> Draw:
    return Policy().sample(torch.empty(6, 3, 1, 1), relaxed=True)


def test_detach_and_pathwise() -> None:
    draw = relaxed_draw()
    assert draw.magnitude.requires_grad
    hard, pathwise = draw.detach(), draw.pathwise()
    assert (hard.weight, hard.gate) == (None, None)
    assert not hard.magnitude.requires_grad
    assert (pathwise.weight, pathwise.gate) == (None, None)
    assert pathwise.magnitude.requires_grad


def test_indexing_and_devices() -> None:
    draw = relaxed_draw()
    assert (len(draw), draw.stages) == (6, 2)
    assert torch.equal(draw[2].choice, draw.choice[:, 2:3])
    assert torch.equal(draw[-1].choice, draw.choice[:, 5:])
    assert torch.equal(draw[torch.tensor([4, 0])].sign, draw.sign[:, [4, 0]])
    part = draw[1:4]
    assert part.weight is not None
    assert part.weight.shape == (2, 3)
    assert part.gate is not None
    assert draw.gate is not None
    assert torch.equal(part.gate, draw.gate[:, 1:4])
    assert part.weight.grad_fn is not None
    assert [len(one) for one in draw] == [1] * 6
    with pytest.raises(IndexError):
        draw[6]
    assert draw.to("cpu").choice.device.type == "cpu"


def test_fields_must_fit_together() -> None:
    draw = relaxed_draw()
    with pytest.raises(ValueError, match="sign"):
        Draw(draw.choice, draw.applied, draw.magnitude, draw.sign[:, :5])
