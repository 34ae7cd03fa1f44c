"""CUDA graphs: functions of tensors that are recorded once, and then replayed by one launch instead of hundreds."""

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
"""The largest number of graphs of one runner. More mean that something changes at every call that should not."""

Result = TypeVar("Result")
Tensors = tuple[Tensor, ...]


@dataclasses.dataclass(eq=False)
class _Recording(Generic[Result]):
    static: Tensors
    calls: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    result: Result | None = None


class GraphPool:
    """A pool of memory for graphs that are never replayed at the same time, and the stream that records them.

    All graphs share one stream, since the allocator keeps memory for each stream.

    Args:
        device: The GPU. By default the current one.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.stream = torch.cuda.Stream(device)
        self.runners: weakref.WeakSet[CudaGraphRunner[Any]] = weakref.WeakSet()
        self.renew()

    def renew(self) -> None:
        """Drop the graphs and begin another pool. A recording that failed leaves its pool unusable."""
        for runner in self.runners:
            runner.forget()
        # No MemPool: if a recording has failed, releasing one aborts the process.
        self.pool = torch.cuda.graph_pool_handle()
        self.held = False

    def release(self) -> None:
        """Return the memory of the pool. A graph that was in it is recorded again at its next call."""
        if not self.held:
            return
        torch.cuda.synchronize(self.stream.device)  # a graph may still be at work
        self.renew()
        empty_caches()

    def recording(self, graph: torch.cuda.CUDAGraph) -> torch.cuda.graph:
        """Return the context that records a graph in the pool."""
        self.held = True
        return torch.cuda.graph(graph, self.pool, self.stream)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Run a first call on the stream, before it is recorded.

        The call uses ordinary memory, since the tensors of a first call often persist. Graphs are dropped before, since
        there may not be enough memory for both.
        """
        self.release()
        self.stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            torch.cuda.current_stream().wait_stream(self.stream)


class CudaGraphRunner(Generic[Result]):
    """A runner of `function(key, tensors)` as a CUDA graph, for functions whose bottleneck is the host.

    A graph requires static shapes and a host that never waits for the device. Each key and each set of shapes has
    its own graph. The arguments are copied to the same tensors at every call. The result is in the same tensors at
    every call, and the next call overwrites it. Once a recording has failed, every call runs without graphs.

    Args:
        function: The function to record. Only its key and its tensors may change from call to call.
        name: A plural for messages, such as "training steps".
        random: The modules whose random numbers the function draws.
        say: Called with one line if a recording fails.
        memory: The memory that the graphs share with other runners. By default each runner has its own.
        otherwise: The same function for calls without graphs. By default `function`, whose errors before the recording
            are then not caught.
        before: Calls before a graph is recorded. They create the states of optimizers, compiled code and the plans of
            kernels.
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
        """Return the result of the function."""
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
        """The memory that the graphs share."""
        self._memory = GraphPool() if self._memory is None else self._memory
        self._memory.runners.add(self)
        return self._memory

    def forget(self) -> None:
        """Drop the graphs. The calls before a recording are not repeated."""
        for recording in self._recordings.values():
            recording.graph = recording.result = None

    def _statics(self, tensors: Tensors) -> Tensors:
        """Return the tensors that graphs read. Graphs share them for arguments of the same place, shape and dtype."""
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
            traceback.clear_frames(error.__traceback__)  # frames hold the tensors of the failed call
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
            self.function = self.otherwise  # the failed function and its tensors are freed
        torch.cuda.empty_cache()
        self.say(f"{self.name} run without a CUDA graph, which could not be recorded: {' '.join(reason.split())[:200]}")

    def _aside(self, key: Hashable, tensors: Tensors) -> Result:
        """Call the function on the stream on which it will be recorded."""
        with self.memory.aside():
            result = self.function(key, tensors)
        empty_caches()  # the graph will hold memory of its own
        return result

    def _record(self, key: Hashable, recording: _Recording[Result]) -> None:
        device = recording.static[0].device
        graph = torch.cuda.CUDAGraph()
        own = [module.generator(device) for module in self.random]
        for generator in own:
            graph.register_generator_state(generator)
        # A recording that fails leaves the generators unusable, the global one too.
        everyone = [*own, torch.cuda.default_generators[device.index or 0]]
        before = [generator.clone_state() for generator in everyone]
        if recording.calls == self.before + 1:
            # Graphs of other runners have fragmented the pool. Outer steps are recorded last, and are the largest.
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
    """Copy with one launch for each dtype."""
    pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(static, tensors, strict=True):
        targets, sources = pairs.setdefault(target.dtype, ([], []))
        targets.append(target)
        sources.append(source)
    with torch.no_grad():
        for targets, sources in pairs.values():
            torch._foreach_copy_(targets, sources)
