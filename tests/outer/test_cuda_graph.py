"""What a recorder does around its graphs; the graphs themselves are tested where they are used, on a GPU."""

import contextlib
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.outer.cuda_graph import CudaGraphRunner


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls before a recording run as they are, and a recording fails."""

    def aside(recorder: CudaGraphRunner[Any], key: Any, tensors: tuple[Tensor, ...]) -> Any:
        return recorder.function(key, tensors)

    def fail(*_: Any) -> None:
        raise RuntimeError("the host   waited\nfor the device")

    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(CudaGraphRunner, "_aside", aside)
    monkeypatch.setattr(CudaGraphRunner, "_record", fail)


def double(key: float, tensors: tuple[Tensor, ...]) -> Tensor:
    return key * tensors[0]


def test_what_cannot_be_recorded_goes_on_as_it_is_and_says_so_once() -> None:
    said: list[str] = []
    recorder = CudaGraphRunner(double, "training steps", [], said.append, before=2)
    for number in range(5):
        assert recorder(2.0, (torch.tensor([float(number)]),)).item() == 2 * number
        assert len(said) == (number > 1)
    assert said == [
        "training steps run without a CUDA graph, which could not be recorded: RuntimeError: the host waited for the "
        "device"
    ]


def test_errors_of_the_function_itself_are_errors() -> None:
    def broken(_: Any, tensors: tuple[Tensor, ...]) -> Tensor:
        raise ValueError("no such label")

    with pytest.raises(ValueError, match="no such label"):
        CudaGraphRunner(broken, "training steps", [], print)(0, (torch.zeros(1),))


def test_another_way_takes_over_with_nothing_left_of_the_first() -> None:
    left: list[weakref.ref[Tensor]] = []
    said: list[str] = []

    def large(_: Any, tensors: tuple[Tensor, ...]) -> float:
        activations = torch.zeros(1000)
        left.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def small(_: Any, tensors: tuple[Tensor, ...]) -> float:
        assert left[0]() is None, "the failed call's tensors are still there"
        return float(tensors[0].sum())

    recorder = CudaGraphRunner(large, "outer steps", [], said.append, otherwise=small)
    assert recorder(0, (torch.ones(3),)) == 3
    assert recorder(0, (torch.ones(4),)) == 4
    assert len(left) == len(said) == 1


def test_what_is_forgotten_is_recorded_again_at_its_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class Graph:
        def replay(self) -> None:
            did.append("replay")

    def aside(recorder: CudaGraphRunner[Any], key: Any, tensors: tuple[Tensor, ...]) -> Any:
        did.append("aside")
        return recorder.function(key, tensors)

    def record(recorder: CudaGraphRunner[Any], key: Any, recording: Any) -> None:
        did.append("record")
        recording.graph, recording.result = Graph(), recorder.function(key, recording.static)

    monkeypatch.setattr(CudaGraphRunner, "_aside", aside)
    monkeypatch.setattr(CudaGraphRunner, "_record", record)
    recorder = CudaGraphRunner(double, "outer steps", [], pytest.fail, before=1)
    for _ in range(3):
        recorder(2.0, (torch.ones(1),))
    recorder.forget()
    for _ in range(2):
        recorder(2.0, (torch.ones(1),))
    assert did == ["aside", "record", "replay", "replay", "record", "replay", "replay"]


def test_inputs_that_never_come_again_are_not_recorded() -> None:
    said: list[str] = []
    recorder = CudaGraphRunner(double, "outer steps", [], said.append, otherwise=double)
    for number in range(20):
        assert torch.equal(recorder(1.0, (torch.ones(number + 1),)), torch.ones(number + 1))
    assert len(said) == 1
    assert "16 things of different kinds or shapes" in said[0]
    assert not recorder._recordings


def test_tensors_are_copied_to_where_they_were_first() -> None:
    places: set[int] = set()

    def note(_: Any, tensors: tuple[Tensor, ...]) -> float:
        places.update(tensor.data_ptr() for tensor in tensors)
        return float(tensors[0].sum() + tensors[1].sum())

    recorder = CudaGraphRunner(note, "outer steps", [], print, before=9)
    for number in range(4):
        assert recorder(0, (torch.full((2,), float(number)), torch.tensor([number]))) == 3 * number
    assert len(places) == 2
    assert recorder("another thing to do", (torch.full((2,), 5.0), torch.tensor([5]))) == 15
    assert len(places) == 2  # what was traced of the one serves the other
