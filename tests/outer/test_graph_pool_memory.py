"""Calls before a recording, and graphs that take turns, in the same memory."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from madao.device.allocator import empty_caches
from madao.outer.cuda_graph import CudaGraphRunner, GraphPool

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

_LARGE = 2**26


def large(key: float, tensors: tuple[Tensor, ...]) -> Tensor:
    """256 MiB on the way to a number."""
    (start,) = tensors
    return (key * start.expand(_LARGE).contiguous()).mean()


def test_a_call_before_its_recording_takes_no_memory_beside_that_of_other_graphs() -> None:
    memory, start = GraphPool(), torch.ones((), device="cuda")
    first, second = (CudaGraphRunner(large, name, [], pytest.fail, memory, before=1) for name in ("first", "second"))
    for _ in range(3):
        assert float(first(2.0, (start,))) == 2.0
    empty_caches()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_reserved()
    for number in range(4):
        assert float(second(3.0, (start + number,))) == 3.0 * (1 + number)
        assert float(first(2.0, (start + number,))) == 2.0 * (1 + number)
    assert torch.cuda.max_memory_reserved() - held < 2**24


def test_what_was_released_is_given_back_and_recorded_again() -> None:
    memory, start = GraphPool(), torch.ones((), device="cuda")
    recorder = CudaGraphRunner(large, "first", [], pytest.fail, memory, before=1)
    empty_caches()
    held = torch.cuda.memory_reserved()
    for number in range(3):
        result = recorder(2.0, (start + number,))
    assert torch.cuda.memory_reserved() - held >= 4 * _LARGE
    memory.release()
    assert float(result) == 6.0, "what a graph returned is whole although the graph is gone"
    del result
    empty_caches()
    assert torch.cuda.memory_reserved() - held < 2**24
    for number in range(3):
        assert float(recorder(2.0, (start + number,))) == 2.0 * (1 + number)
    assert torch.cuda.memory_reserved() - held >= 4 * _LARGE


def test_what_is_recorded_first_makes_room_and_the_others_follow() -> None:
    memory, start = GraphPool(), torch.ones((), device="cuda")
    first, second = (CudaGraphRunner(large, name, [], pytest.fail, memory, before=0) for name in ("first", "second"))
    first(2.0, (start,))
    before = memory.pool
    second(3.0, (start,))
    assert memory.pool != before
    after = memory.pool
    for number in range(3):
        assert float(first(2.0, (start + number,))) == 2.0 * (1 + number)
        assert float(second(3.0, (start + number,))) == 3.0 * (1 + number)
    assert memory.pool == after, "what is recorded again makes no room"


def test_a_recording_that_failed_does_not_end_the_process() -> None:
    code = """
import torch
from madao.outer.cuda_graph import CudaGraphRunner, GraphPool

def waits(key, tensors):
    return tensors[0] * float(tensors[0].sum())

recorder = CudaGraphRunner(waits, "steps", [], print, GraphPool(), before=1)
for _ in range(3):
    result = recorder(0, (torch.ones(4, device="cuda"),))
print(result.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[4.0, 4.0, 4.0, 4.0]" in done.stdout
    assert "steps run without a CUDA graph" in done.stdout
