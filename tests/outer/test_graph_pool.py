"""Which graphs are recorded when, and in which pool, without a GPU; with one: test_shared_memory."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.outer import cuda_graph as module
from madao.outer.cuda_graph import CudaGraphRunner, GraphPool


class _Graph:
    def replay(self) -> None:
        pass

    def register_generator_state(self, _: Any) -> None:
        pass


class _Stream:
    device = torch.device("cpu")

    def wait_stream(self, _: Any) -> None:
        pass


class _Generator:
    def clone_state(self) -> int:
        return 0

    def graphsafe_set_state(self, _: int) -> None:
        pass


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in words: "A before" ran before its recording, "A in 2" was recorded in the second pool."""
    happened: list[str] = []
    pools = itertools.count(1)

    @contextlib.contextmanager
    def recording(_: Any, pool: int, __: Any) -> Iterator[None]:
        happened.append(f"in {pool}")
        yield

    fakes = {
        "Stream": lambda _=None: _Stream(),
        "graph_pool_handle": lambda: next(pools),
        "graph": recording,
        "CUDAGraph": _Graph,
        "current_stream": _Stream,
        "stream": lambda _: contextlib.nullcontext(),
        "device": lambda _: contextlib.nullcontext(),
        "synchronize": lambda _=None: happened.append("waited"),
        "empty_cache": lambda: None,
        "default_generators": [_Generator()],
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(module, "empty_caches", lambda: None)
    return happened


def recorder(name: str, did: list[str], memory: GraphPool, before: int = 1) -> CudaGraphRunner[int]:
    def function(key: int, _: tuple[Tensor, ...]) -> int:
        did.append(name)
        if key < 0:
            raise RuntimeError("the host waited")
        return key

    return CudaGraphRunner(function, name, [], did.append, memory, before=before)


def called(recorder: CudaGraphRunner[int], key: int, did: list[str]) -> list[str]:
    """What a call does."""
    del did[:]
    assert recorder(key, (torch.zeros(1),)) == key
    return [*did]


def test_a_call_before_its_recording_takes_the_place_of_the_graphs(did: list[str]) -> None:
    memory = GraphPool()
    inner, outer = recorder("inner", did, memory), recorder("outer", did, memory)
    assert called(inner, 1, did) == ["inner"]
    assert called(inner, 1, did) == ["in 1", "inner"]
    assert called(inner, 1, did) == []
    assert called(outer, 2, did) == ["waited", "outer"]
    assert called(inner, 1, did) == ["in 2", "inner"], "recorded again, in another pool"
    assert called(inner, 1, did) == []


def test_what_is_recorded_for_the_first_time_has_the_pool_for_itself_and_the_others_follow(did: list[str]) -> None:
    memory = GraphPool()
    inner, outer = recorder("inner", did, memory, before=0), recorder("outer", did, memory, before=0)
    assert called(inner, 1, did) == ["in 1", "inner"]
    assert called(outer, 2, did) == ["waited", "in 2", "outer"]
    assert called(inner, 1, did) == ["in 2", "inner"]
    assert called(outer, 2, did) == called(inner, 1, did) == []
    assert called(outer, 3, did) == ["waited", "in 3", "outer"], "another of the same recorder"
    assert called(outer, 2, did) == ["in 3", "outer"]
    assert called(inner, 1, did) == ["in 3", "inner"]


def test_a_recording_that_fails_leaves_the_others_another_pool(did: list[str]) -> None:
    memory = GraphPool()
    inner, outer = recorder("inner", did, memory, before=0), recorder("outer", did, memory, before=0)
    called(inner, 1, did)
    del did[:]
    with pytest.raises(RuntimeError, match="the host waited"):
        outer(-1, (torch.zeros(1),))
    assert did[:3] == ["waited", "in 2", "outer"]
    assert did[3].startswith("outer run without a CUDA graph")
    assert called(inner, 1, did) == ["in 3", "inner"]


def test_memory_that_holds_no_graph_is_not_waited_for(did: list[str]) -> None:
    memory = GraphPool()
    memory.release()
    assert did == []
