"""Functions of tensors recorded once as a CUDA graph and replayed: one launch where there were hundreds."""

import contextlib
import dataclasses
import traceback
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from madao.device.allocator import empty_caches
from madao.policy.seeded_module import SeededModule

_MOST = 16
"""Graphs of one recorder: where there would be more, something that should stay changes at every call."""

Result = TypeVar("Result")
Tensors = tuple[Tensor, ...]


@dataclasses.dataclass(eq=False)
class _Recording(Generic[Result]):
    static: Tensors
    calls: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    result: Result | None = None


class GraphPool:
    """A pool of memory for graphs that are never replayed at the same time, and the stream they are made on.

    One stream: the allocator keeps memory for each.

    Args:
        device: By default the current one.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.stream = torch.cuda.Stream(device)
        self.recorders: weakref.WeakSet[CudaGraphRunner[Any]] = weakref.WeakSet()
        self.renew()

    def renew(self) -> None:
        """Forget the graphs, and let those to come have another pool: a recording that failed leaves it unusable."""
        for recorder in self.recorders:
            recorder.forget()
        # No MemPool: after a recording that failed its end is that of the process.
        self.pool = torch.cuda.graph_pool_handle()
        self.held = False

    def release(self) -> None:
        """Give the pool's memory back. What was recorded in it is recorded again when it is called again."""
        if not self.held:
            return
        torch.cuda.synchronize(self.stream.device)  # a graph may still be at work
        self.renew()
        empty_caches()

    def recording(self, graph: torch.cuda.CUDAGraph) -> torch.cuda.graph:
        """Record what follows, in the pool."""
        self.held = True
        return torch.cuda.graph(graph, self.pool, self.stream)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Run what follows on the stream, before anything of it is recorded.

        In ordinary memory, since what a first call makes is often made to stay; and in place of the graphs, since there
        may not be enough for both.
        """
        self.release()
        self.stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            torch.cuda.current_stream().wait_stream(self.stream)


class CudaGraphRunner(Generic[Result]):
    """`function(key, tensors)` where the host is the bottleneck.

    A graph needs static shapes and a host that never waits. There is one for each key and shapes; what it is given is
    copied into the same tensors at every call, and what it returns are the same tensors at every call, overwritten by
    the next. From the moment on that recording fails everything runs without it, which is said in one line.

    Args:
        function: What is recorded. The key decides what it does; all else it knows comes as tensors.
        name: Of what it does, for that line: "training steps".
        random: Modules whose random numbers it draws.
        say: Where the line goes.
        memory: What the graphs share with those of others. By default they share it among themselves.
        otherwise: What does the same without a graph. By default the function itself, whose own errors are then errors.
        before: Calls before a graph is recorded: optimizers' state, compiled code and kernels' plans come into being.
    """

    def __init__(
        self,
        function: Callable[[Any, Tensors], Result],
        name: str,
        random: Sequence[SeededModule],
        say: Callable[[str], None],
        memory: GraphPool | None = None,
        otherwise: Callable[[Any, Tensors], Result] | None = None,
        before: int = 3,
    ) -> None:
        self.function, self.name, self.random, self.say, self._memory = function, name, random, say, memory
        self.otherwise, self.before = otherwise, before
        self.failed = False
        self._static: dict[Hashable, Tensor] = {}
        self._recordings: dict[Hashable, _Recording[Result]] = {}

    def __call__(self, key: Hashable, tensors: Tensors) -> Result:
        """What the function returns."""
        if self.failed:
            return self.function(key, tensors)
        with torch.cuda.device(tensors[0].device):
            return self._recorded(key, tensors)

    def _recorded(self, key: Hashable, tensors: Tensors) -> Result:
        place = (key, *((tensor.shape, tensor.dtype) for tensor in tensors))
        recording = self._recordings.get(place)
        if recording is None and len(self._recordings) == _MOST:
            self._give_up(f"it was asked for {_MOST} things of different kinds or shapes")
            return self(key, tensors)
        if recording is None:
            recording = self._recordings[place] = _Recording(self._statics(tensors))
        _copy(recording.static, tensors)
        recording.calls += 1
        if recording.graph is None:
            return self._not_yet(key, recording)
        recording.graph.replay()
        assert recording.result is not None
        return recording.result

    @property
    def memory(self) -> GraphPool:
        """What the graphs share."""
        self._memory = GraphPool() if self._memory is None else self._memory
        self._memory.recorders.add(self)
        return self._memory

    def forget(self) -> None:
        """What was recorded, not what has to have run before."""
        for recording in self._recordings.values():
            recording.graph = recording.result = None

    def _statics(self, tensors: Tensors) -> Tensors:
        """The tensors that graphs read, the same for all whose tensors are alike: what knows them knows them all."""
        places = [(place, tensor.shape, tensor.dtype) for place, tensor in enumerate(tensors)]
        for place, tensor in zip(places, tensors, strict=True):
            if place not in self._static:
                self._static[place] = tensor.detach().clone()
        return tuple(self._static[place] for place in places)

    def _not_yet(self, key: Hashable, recording: _Recording[Result]) -> Result:
        if recording.calls <= self.before and self.otherwise is None:
            return self._aside(key, recording.static)
        try:
            if recording.calls <= self.before:
                return self._aside(key, recording.static)
            self._record(key, recording)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            traceback.clear_frames(error.__traceback__)  # which hold what the failed call had made
        if recording.graph is None:
            self._give_up(reason)
            return self(key, recording.static)
        assert recording.result is not None
        recording.graph.replay()
        return recording.result

    def _give_up(self, reason: str) -> None:
        self.failed = True
        self._recordings.clear()
        self._static.clear()
        if self.otherwise is not None:
            self.function = self.otherwise  # and nothing is kept of what the other made
        torch.cuda.empty_cache()
        self.say(f"{self.name} run without a CUDA graph, which could not be recorded: {' '.join(reason.split())[:200]}")

    def _aside(self, key: Hashable, tensors: Tensors) -> Result:
        """A call on a stream of its own, as what is recorded later has to have run before."""
        with self.memory.aside():
            result = self.function(key, tensors)
        empty_caches()  # what this call needed, the graph will hold for itself
        return result

    def _record(self, key: Hashable, recording: _Recording[Result]) -> None:
        device = recording.static[0].device
        graph = torch.cuda.CUDAGraph()
        own = [module.generator(device) for module in self.random]
        for generator in own:
            graph.register_generator_state(generator)
        # A recording that fails leaves generators unusable, the global one too.
        everyone = [*own, torch.cuda.default_generators[device.index or 0]]
        before = [generator.clone_state() for generator in everyone]
        if recording.calls == self.before + 1:  # the first time
            # What comes second finds what the first has left in pieces. Outer steps come later, and are larger.
            self.memory.release()
        empty_caches()
        try:
            with self.memory.recording(graph):
                result = self.function(key, recording.static)
        except Exception:
            for generator, state in zip(everyone, before, strict=True):
                generator.graphsafe_set_state(state)
            self.memory.renew()
            raise
        empty_caches()
        recording.graph, recording.result = graph, result


def _copy(static: Tensors, tensors: Tensors) -> None:
    """In one launch for all of a kind."""
    pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(static, tensors, strict=True):
        targets, sources = pairs.setdefault(target.dtype, ([], []))
        targets.append(target)
        sources.append(source)
    with torch.no_grad():
        for targets, sources in pairs.values():
            torch._foreach_copy_(targets, sources)
