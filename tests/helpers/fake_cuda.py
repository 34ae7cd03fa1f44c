"""A stand-in for torch's CUDA graphs on machines without a GPU. It notes what happens."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from madao.outer import cuda_graph


class FakeCuda:
    """CUDA graphs that run nothing at a replay.

    Attributes:
        happened: "in 2" for a recording in the second pool, "replay", "waited" for a synchronisation.
        error: The error of every recording, if any.
    """

    device = torch.device("cpu")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.happened: list[str] = []
        self.error: Exception | None = None
        pools = itertools.count(1)
        fakes: dict[str, Any] = {
            "Stream": lambda _=None: self,
            "current_stream": lambda: self,
            "CUDAGraph": lambda: self,
            "default_generators": [self],
            "graph": self.recording,
            "graph_pool_handle": lambda: next(pools),
            "stream": lambda _: contextlib.nullcontext(),
            "device": lambda _: contextlib.nullcontext(),
            "synchronize": lambda _=None: self.happened.append("waited"),
            "empty_cache": lambda: None,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(cuda_graph, "empty_caches", lambda: None)

    @contextlib.contextmanager
    def recording(self, graph: Any, pool: int, stream: Any) -> Iterator[None]:
        self.happened.append(f"in {pool}")
        if self.error is not None:
            raise self.error
        yield

    def replay(self) -> None:
        self.happened.append("replay")

    def wait_stream(self, _: Any) -> None:
        pass

    def clone_state(self) -> "FakeCuda":
        return self

    def graphsafe_set_state(self, state: Any) -> None:
        self.happened.append("generator restored")
