"""Steps of an iteration as a CUDA graph: on a GPU, launching a step costs more than the step.

A graph is recorded when a system is first solved with a shape, and replayed from then on. It
reads the system's tensors where they are, so that weights which change in place are seen; when
one of them has moved, the graph is dropped. Samples do not leave the batch here: a step for all
costs little more than one for a few.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mintnet.solvers.base import Evaluate, System

GRAPHS = 6
"""The most graphs that are kept for one system."""

Step = Callable[[Any, Evaluate, Tensor], None]
"""(run, evaluate, count): one step, which replaces tensors of the run by others."""

_log = logging.getLogger(__name__)
_alone = threading.Lock()
"""Graphs and their buffers share memory, so that one is replayed at a time."""
_pools: dict[torch.device, Any] = {}
_buffers: dict[tuple[Any, ...], tuple[Any, Tensor, Tensor]] = {}


class CapturedSteps:
    """One step of an iteration on one system, recorded.

    Args:
        system: with ``renew``.
        run: the state of the iteration, in buffers of its own; its ``gone`` says which samples
            are done.
        count: the number of the step, in a buffer of its own.
        left: how many samples are not done, in a buffer of its own.
        step: what to record.
    """

    def __init__(self, system: System, run: Any, count: Tensor, left: Tensor, step: Step) -> None:
        assert system.renew is not None
        self.tensors = system.tensors  # kept alive, since the graph reads their memory
        self.run, self.count, self.left = run, count, left
        self.buffers = {k: v for k, v in vars(run).items() if isinstance(v, Tensor)}
        device = count.device
        pool = _pools.setdefault(device, torch.cuda.graph_pool_handle())
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):  # libraries choose their algorithms before the recording
            for _ in range(2):
                self._record(system.renew(), step)
        torch.cuda.current_stream(device).wait_stream(side)
        self.weights, self.graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.weights, pool=pool, stream=side):
            self.evaluate = system.renew()
        with torch.cuda.graph(self.graph, pool=pool, stream=side):
            self._record(self.evaluate, step)

    def _record(self, evaluate: Evaluate, step: Step) -> None:
        step(self.run, evaluate, self.count)
        for name, buffer in self.buffers.items():
            if (value := getattr(self.run, name)) is not buffer:
                buffer.copy_(value)
                setattr(self.run, name, buffer)
        self.count.add_(1)
        self.left.copy_((~self.run.gone).sum())

    def is_for(self, system: System) -> bool:
        """Whether the system still has its tensors where the graph reads them."""
        return len(self.tensors) == len(system.tensors) and all(
            a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
            for a, b in zip(self.tensors, system.tensors, strict=True)
        )

    def __call__(self, z: Tensor, scale: Tensor, start: Tensor, max_steps: int) -> Any:
        """The run after as many steps as were needed, in tensors that are its own."""
        fresh = type(self.run)(z, scale, start)
        for name, buffer in self.buffers.items():
            buffer.copy_(getattr(fresh, name))
        self.count.zero_()
        self.weights.replay()
        for _ in range(max_steps + 1):
            self.graph.replay()
            if int(self.left) == 0:
                break
        for name, buffer in self.buffers.items():
            setattr(fresh, name, buffer.clone())
        return fresh


@contextmanager
def captured(
    system: System, z: Tensor, key: tuple[Any, ...], make: Callable[[Tensor], tuple[Any, Step]]
) -> Iterator[CapturedSteps | None]:
    """The recorded steps of a system for the shape of z, or None where there are none.

    There are none while another thread uses them, where the system does not allow it, and where
    recording failed.
    """
    if system.renew is None or torch.cuda.is_current_stream_capturing():
        yield None
        return
    if not _alone.acquire(blocking=False):
        yield None
        return
    try:
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(z.device):
            yield _known_steps(system, z, key, make)
    finally:
        _alone.release()


def _apart(run: Any) -> Any:
    """The run with a buffer of its own for each of its tensors."""
    for name, value in vars(run).items():
        if isinstance(value, Tensor):
            setattr(run, name, value.clone())
    return run


def _known_steps(
    system: System, z: Tensor, key: tuple[Any, ...], make: Callable[[Tensor], tuple[Any, Step]]
) -> CapturedSteps | None:
    place = (*key, tuple(z.shape), z.dtype, z.device)
    kept: dict[Any, Any] = system.memory.setdefault("captured steps", {})
    found = kept.pop(place, None)
    if isinstance(found, CapturedSteps) and not found.is_for(system):
        found = None
    if found is None:
        try:
            run, step = make(z)
            shape = (tuple(z.shape), z.dtype, z.device, type(run))
            count = torch.zeros((), dtype=torch.long, device=z.device)
            run, count, left = _buffers.setdefault(shape, (_apart(run), count, count.clone()))
            found = CapturedSteps(system, run, count, left, step)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            _log.warning("%s: steps are not recorded as a CUDA graph (%s)", system.name, error)
            found = "impossible"
    kept[place] = found  # the latest is the last
    while len(kept) > GRAPHS:
        del kept[next(iter(kept))]
    return found if isinstance(found, CapturedSteps) else None
