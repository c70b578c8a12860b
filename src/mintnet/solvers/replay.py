"""CUDA graphs: what they share, and a function of one tensor as a graph."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

FORWARD_GRAPHS = 3
"""The most graphs that are kept for one function."""
LARGEST = 2**20
"""The most entries of an input for which a forward pass is recorded: with more, launches do not
matter, and a graph would keep much memory."""

alone = threading.Lock()
"""Graphs share their memory, so that one is replayed at a time."""
_pools: dict[torch.device, Any] = {}
_log = logging.getLogger(__name__)


class Gate:
    """Lets the solves of several threads pass together, and a recording by itself.

    While one thread records, no other may wait for the whole device, which libraries do when they
    choose an algorithm or give memory back.

    Examples:
        >>> gate = Gate()
        >>> with gate.passing(), gate.by_itself(), gate.passing():
        ...     pass  # one thread is never in its own way
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}
        """How deep each thread is in."""
        self._recording: int | None = None

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Inside, no other thread records; one that does is waited for."""
        me = threading.get_ident()
        with self._changed:
            # Who is in already goes on: the one that wants to record waits for it to leave.
            self._changed.wait_for(lambda: self._recording in (None, me) or me in self._inside)
            self._inside[me] = self._inside.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if self._inside[me] == 0:
                    del self._inside[me]
                self._changed.notify_all()

    @contextmanager
    def by_itself(self) -> Iterator[None]:
        """Inside, no other thread passes. One thread at a time may ask, the one with `alone`."""
        me = threading.get_ident()
        try:
            with self._changed:
                self._recording = me
                self._changed.wait_for(lambda: self._inside.keys() <= {me})
            yield
        finally:
            with self._changed:
                self._recording = None
                self._changed.notify_all()


gate = Gate()
"""Of everything that is recorded here."""


def is_recording(x: Tensor) -> bool:
    """Whether a graph is being recorded around us."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Inside, the GPU of x is the present one."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


class Watched:
    """Tensors that a graph reads where they are: kept alive, and looked at before each replay."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.kept = [tensor.detach() for tensor in tensors]
        self.places = _places(tensors)

    def are(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the tensors are still where they were."""
        return self.places == _places(tensors)


def _places(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    return [(t.data_ptr(), t.shape, t.stride()) for t in tensors]


@contextmanager
def usable_generator(device: torch.device) -> Iterator[None]:
    """Around a recording: if it fails, the GPU's random numbers can be drawn nevertheless.

    torch (2.11) leaves the generator in the state of recording when a recording breaks off, for
    want of memory for example, and refuses each later `randn` on this GPU. A copy of the
    generator's state goes on where it was, and is not recording.
    """
    try:
        yield
    except BaseException:
        index = torch.cuda.current_device() if device.index is None else device.index
        generator = torch.cuda.default_generators[index]
        generator.graphsafe_set_state(generator.clone_state())
        raise


class Recorder:
    """Records what functions do on a GPU; they are run before, so that nothing is left to choose.

    On a CPU, where nothing can be recorded, a function is its own recording: for tests.
    """

    count = 0
    """Recordings so far: a time in which one was made is not the time of what it records."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def warm_up(self, *functions: Callable[[], object]) -> None:
        """Run functions where they will be recorded."""
        if self.side is None:
            for function in functions:
                function()
            return
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side):
            for function in functions:
                function()
        torch.cuda.current_stream(self.device).wait_stream(self.side)

    def record(self, function: Callable[[], object]) -> Callable[[], object]:
        """What repeats a function on the same memory."""
        Recorder.count += 1
        if self.side is None:
            function()
            return function
        pool = _pools.setdefault(self.device, torch.cuda.graph_pool_handle())
        graph, mode = torch.cuda.CUDAGraph(), "thread_local"
        recording = torch.cuda.graph(graph, pool=pool, stream=self.side, capture_error_mode=mode)
        with gate.by_itself(), usable_generator(self.device), recording:
            function()
        replay: Callable[[], object] = graph.replay
        return replay

    def finish(self) -> None:
        """Wait: whoever comes next may be on another stream, and graphs share their memory."""
        if self.side is not None:
            torch.cuda.current_stream(self.device).synchronize()


class ForwardGraph:
    """x ↦ f(x) for one shape of x."""

    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.x, self.function = x.clone(), function
        self.recorder = Recorder(x.device)
        self.recorder.warm_up(self._run)
        self.replay = self.recorder.record(self._run)

    def _run(self) -> None:
        self.y = self.function(self.x)

    def __call__(self, x: Tensor) -> Tensor:
        self.x.copy_(x)
        self.replay()
        y = self.y.clone()
        self.recorder.finish()
        return y


def replayed(
    memory: dict[Any, Any],
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    tensors: Sequence[Tensor],
) -> Tensor:
    """f(x), from the second call with a shape on as a CUDA graph.

    Args:
        memory: where graphs are kept.
        function: f, which reads nothing back to the host.
        x: on a GPU.
        tensors: the weights of f; when one of them has moved, its graphs are dropped.
    """
    if is_recording(x):
        return function(x)
    with gate.passing():
        if x.numel() > LARGEST or not alone.acquire(blocking=False):
            return function(x)
        try:
            return _replayed(memory, function, x, tensors)
        finally:
            alone.release()


def _replayed(
    memory: dict[Any, Any],
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    tensors: Sequence[Tensor],
) -> Tensor:
    with torch.inference_mode(False), torch.no_grad(), on_device_of(x):
        watched = memory.get("forward watched")
        if watched is None or not watched.are(tensors):
            memory["forward watched"], memory["forward"] = Watched(tensors), {}
        graphs: dict[Any, ForwardGraph | str] = memory["forward"]
        place = (tuple(x.shape), x.dtype)
        graph = graphs.pop(place, "new")
        if graph == "seen":
            graph = _recorded(function, x)  # still "seen" where there was no memory
        graphs[place] = "seen" if graph == "new" else graph  # the latest is the last
        while len(graphs) > FORWARD_GRAPHS:
            del graphs[next(iter(graphs))]
        return graph(x) if isinstance(graph, ForwardGraph) else function(x)


def _recorded(function: Callable[[Tensor], Tensor], x: Tensor) -> ForwardGraph | str:
    try:
        return ForwardGraph(function, x)
    except torch.OutOfMemoryError:
        return "seen"
    except RuntimeError as error:
        _log.warning("a forward pass is not recorded as a CUDA graph (%s)", error)
        return "impossible"
