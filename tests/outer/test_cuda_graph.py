"""Which graphs are recorded when, and in which pool, without a GPU; with one: test_graph_pool_memory."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.outer.cuda_graph import CudaGraphRunner, GraphPool
from tests.helpers.fake_cuda import FakeCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def double(key: float, tensors: tuple[Tensor, ...]) -> Tensor:
    return key * tensors[0]


def runner(name: str, cuda: FakeCuda, memory: GraphPool | None = None, before: int = 1) -> CudaGraphRunner[int]:
    """Return a runner of a function that notes its calls."""

    def function(key: int, _: tuple[Tensor, ...]) -> int:
        cuda.happened.append(name)
        if key < 0:
            raise RuntimeError("the host waited")
        return key

    return CudaGraphRunner(function, name, [], cuda.happened.append, memory, before=before)


def called(runner: CudaGraphRunner[int], key: int, cuda: FakeCuda) -> list[str]:
    """Call a runner, and return what happens."""
    del cuda.happened[:]
    assert runner(key, (torch.zeros(1),)) == key
    return [*cuda.happened]


def test_a_function_that_cannot_be_recorded_runs_without_a_graph_and_that_is_said_once(cuda: FakeCuda) -> None:
    said: list[str] = []
    cuda.error = RuntimeError("the host   waited\nfor the device")
    steps = CudaGraphRunner(double, "training steps", [], said.append, before=2)
    for number in range(5):
        assert steps(2.0, (torch.tensor([float(number)]),)).item() == 2 * number
        assert len(said) == (number > 1)
    assert "training steps" in said[0]
    assert said[0].endswith("RuntimeError: the host waited for the device")
    assert cuda.happened.count("generator restored") == 1


def test_errors_of_the_function_are_not_caught(cuda: FakeCuda) -> None:
    def broken(_: Any, tensors: tuple[Tensor, ...]) -> Tensor:
        raise ValueError("no such label")

    with pytest.raises(ValueError, match="no such label"):
        CudaGraphRunner(broken, "training steps", [], print)(0, (torch.zeros(1),))


def test_another_function_takes_over_with_the_memory_of_the_first(cuda: FakeCuda) -> None:
    left: list[weakref.ref[Tensor]] = []
    said: list[str] = []

    def large(_: Any, tensors: tuple[Tensor, ...]) -> float:
        activations = torch.zeros(1000)
        left.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def small(_: Any, tensors: tuple[Tensor, ...]) -> float:
        assert left[0]() is None, "the failed call's tensors are still there"
        return float(tensors[0].sum())

    steps = CudaGraphRunner(large, "outer steps", [], said.append, otherwise=small)
    assert steps(0, (torch.ones(3),)) == 3
    assert steps(0, (torch.ones(4),)) == 4
    assert len(left) == len(said) == 1


def test_a_dropped_graph_is_recorded_again_at_its_next_call(cuda: FakeCuda) -> None:
    steps = runner("outer", cuda)
    assert [called(steps, 2, cuda) for _ in range(3)] == [["outer"], ["in 1", "outer", "replay"], ["replay"]]
    steps.forget()
    assert [called(steps, 2, cuda) for _ in range(2)] == [["in 1", "outer", "replay"], ["replay"]]


def test_functions_whose_shapes_always_change_are_not_recorded(cuda: FakeCuda) -> None:
    said: list[str] = []
    steps = CudaGraphRunner(double, "outer steps", [], said.append, otherwise=double)
    for number in range(20):
        assert torch.equal(steps(1.0, (torch.ones(number + 1),)), torch.ones(number + 1))
    assert len(said) == 1
    assert "16 " in said[0]
    assert not steps._recordings


def test_arguments_are_copied_to_the_same_tensors(cuda: FakeCuda) -> None:
    places: set[int] = set()

    def note(_: Any, tensors: tuple[Tensor, ...]) -> float:
        places.update(tensor.data_ptr() for tensor in tensors)
        return float(tensors[0].sum() + tensors[1].sum())

    steps = CudaGraphRunner(note, "outer steps", [], print, before=9)
    for number in range(4):
        assert steps(0, (torch.full((2,), float(number)), torch.tensor([number]))) == 3 * number
    assert len(places) == 2
    assert steps("another thing to do", (torch.full((2,), 5.0), torch.tensor([5]))) == 15
    assert len(places) == 2, "traced code of one key serves the other"


def test_a_call_before_its_recording_takes_the_place_of_the_graphs(cuda: FakeCuda) -> None:
    memory = GraphPool()
    inner, outer = runner("inner", cuda, memory), runner("outer", cuda, memory)
    assert called(inner, 1, cuda) == ["inner"]
    assert called(inner, 1, cuda) == ["in 1", "inner", "replay"]
    assert called(inner, 1, cuda) == ["replay"]
    assert called(outer, 2, cuda) == ["waited", "outer"]
    assert called(inner, 1, cuda) == ["in 2", "inner", "replay"], "recorded again, in another pool"
    assert called(inner, 1, cuda) == ["replay"]


def test_a_first_recording_has_a_new_pool_and_the_other_graphs_follow(cuda: FakeCuda) -> None:
    memory = GraphPool()
    inner, outer = runner("inner", cuda, memory, before=0), runner("outer", cuda, memory, before=0)
    assert called(inner, 1, cuda) == ["in 1", "inner", "replay"]
    assert called(outer, 2, cuda) == ["waited", "in 2", "outer", "replay"]
    assert called(inner, 1, cuda) == ["in 2", "inner", "replay"]
    assert called(outer, 2, cuda) == called(inner, 1, cuda) == ["replay"]
    assert called(outer, 3, cuda) == ["waited", "in 3", "outer", "replay"], "another graph of the same runner"
    assert called(outer, 2, cuda) == ["in 3", "outer", "replay"]
    assert called(inner, 1, cuda) == ["in 3", "inner", "replay"]


def test_a_recording_that_fails_leaves_the_others_another_pool(cuda: FakeCuda) -> None:
    memory = GraphPool()
    inner, outer = runner("inner", cuda, memory, before=0), runner("outer", cuda, memory, before=0)
    called(inner, 1, cuda)
    del cuda.happened[:]
    with pytest.raises(RuntimeError, match="the host waited"):
        outer(-1, (torch.zeros(1),))
    assert cuda.happened[:4] == ["waited", "in 2", "outer", "generator restored"]
    assert called(inner, 1, cuda) == ["in 3", "inner", "replay"]


def test_a_pool_without_graphs_is_not_waited_for(cuda: FakeCuda) -> None:
    GraphPool().release()
    assert cuda.happened == []
