"""Functions of tensors recorded once as a CUDA graph and replayed: one launch where there were hundreds."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from madao.policy.randomness import OwnRandomness

Result = TypeVar("Result")
Tensors = tuple[Tensor, ...]


@dataclasses.dataclass(eq=False)
class _Recording(Generic[Result]):
    static: Tensors
    calls: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    result: Result | None = None


class Recorder(Generic[Result]):
    """`function(key, tensors)` where the host is the bottleneck.

    A graph needs static shapes and a host that never waits. There is one for each key and shapes; what it is given is
    copied into the same tensors at every call, and what it returns are the same tensors at every call, overwritten by
    the next. From the moment on that recording fails everything runs without it, which is said in one line.

    Args:
        function: What is recorded. The key decides what it does; all else it knows comes as tensors.
        name: Of what it does, for that line: "training steps".
        random: Modules whose random numbers it draws.
        say: Where the line goes.
        pool: Memory the graphs share with those of others, never replayed at the same time.
        otherwise: What does the same without a graph. By default the function itself, whose own errors are then errors.
        before: Calls before a graph is recorded: optimizers' state, compiled code and kernels' plans come into being.
    """

    def __init__(
        self,
        function: Callable[[Any, Tensors], Result],
        name: str,
        random: Sequence[OwnRandomness],
        say: Callable[[str], None],
        pool: Any = None,
        otherwise: Callable[[Any, Tensors], Result] | None = None,
        before: int = 3,
    ) -> None:
        self.function, self.name, self.random, self.say, self.pool = function, name, random, say, pool
        self.otherwise, self.before = otherwise, before
        self.failed = False
        self._stream: torch.cuda.Stream | None = None
        self._recordings: dict[Hashable, _Recording[Result]] = {}

    def __call__(self, key: Hashable, tensors: Tensors) -> Result:
        """What the function returns."""
        if self.failed:
            return (self.otherwise or self.function)(key, tensors)
        place = (key, *((tensor.shape, tensor.dtype) for tensor in tensors))
        recording = self._recordings.get(place)
        if recording is None:
            static = tuple(tensor.detach().clone() for tensor in tensors)
            recording = self._recordings[place] = _Recording(static)
        else:
            _copy(recording.static, tensors)
        recording.calls += 1
        if recording.graph is None:
            return self._not_yet(key, recording)
        recording.graph.replay()
        assert recording.result is not None
        return recording.result

    def _not_yet(self, key: Hashable, recording: _Recording[Result]) -> Result:
        try:
            if recording.calls <= self.before:
                return self._aside(key, recording.static)
        except Exception as error:
            if self.otherwise is None:
                raise
            return self._give_up(error, key, recording)
        try:
            self._record(key, recording)
        except Exception as error:
            return self._give_up(error, key, recording)
        assert recording.graph is not None
        assert recording.result is not None
        recording.graph.replay()
        return recording.result

    def _give_up(self, error: Exception, key: Hashable, recording: _Recording[Result]) -> Result:
        self.failed = True
        self._recordings.clear()
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        self.say(f"{self.name} run without a CUDA graph, which could not be recorded: {reason}")
        return (self.otherwise or self.function)(key, recording.static)

    def _aside(self, key: Hashable, tensors: Tensors) -> Result:
        """A call on a stream of its own, as what is recorded later has to have run before."""
        stream = self._stream = self._stream or torch.cuda.Stream()  # one: each keeps memory of its own
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.function(key, tensors)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.empty_cache()  # what this call needed, the graph will hold for itself
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
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                result = self.function(key, recording.static)
        except Exception:
            for generator, state in zip(everyone, before, strict=True):
                generator.graphsafe_set_state(state)
            raise
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
