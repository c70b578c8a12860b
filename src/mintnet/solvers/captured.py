"""Steps of an iteration as a CUDA graph: on a GPU, launching a step costs more than the step.

A graph is recorded when a system is first solved with a shape, and replayed from then on. It
reads the system's tensors where they are, so that weights which change in place are seen; when
one of them has moved, the graph is dropped. Samples do not leave the batch here: a step for all
costs little more than one for a few.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from mintnet.solvers.base import Evaluate, System
from mintnet.solvers.solution import Solution

GRAPHS = 6
"""The most graphs that are kept for one system."""

S = TypeVar("S")

_log = logging.getLogger(__name__)
_alone = threading.Lock()
"""Graphs share their memory, so that one is replayed at a time."""
_pools: dict[torch.device, Any] = {}


@dataclass(frozen=True)
class Iteration(Generic[S]):
    """What is recorded, in functions that read nothing back to the host.

    Attributes:
        key: tells iterations apart.
        begin: (z, scale, x₀) ↦ the state, an object with tensors for attributes; its ``gone``
            says which samples are done.
        step: (state, evaluate, number of the step): replaces tensors of the state by others.
        end: what came of it.
    """

    key: tuple[Any, ...]
    begin: Callable[[Tensor, Tensor, Tensor], S]
    step: Callable[[S, Evaluate, Tensor], None]
    end: Callable[[S], Solution]


class CapturedSolve(Generic[S]):
    """An iteration on one system and shape as three graphs: begin, step, end."""

    def __init__(self, system: System, z: Tensor, iteration: Iteration[S]) -> None:
        assert system.renew is not None
        self.tensors = system.tensors()  # kept alive, since the graphs read their memory
        self.z, self.scale = z.clone(), z.new_ones(len(z))
        self.count = torch.zeros((), dtype=torch.long, device=z.device)
        self.left = self.count.clone()
        state = iteration.begin(self.z, self.scale, self.z)
        self.buffers = {k: v.clone() for k, v in vars(state).items() if _is_buffer(k, v)}
        side = torch.cuda.Stream(z.device)
        side.wait_stream(torch.cuda.current_stream(z.device))
        with torch.cuda.stream(side):  # libraries choose their algorithms before the recording
            for _ in range(2):
                self._begin(system, iteration)
                self._step(state, iteration)
        torch.cuda.current_stream(z.device).wait_stream(side)
        pool = _pools.setdefault(z.device, torch.cuda.graph_pool_handle())
        parts: tuple[Callable[[], None], ...] = (
            partial(self._begin, system, iteration),
            partial(self._step, state, iteration),
            partial(self._end, state, iteration),
        )
        self.graphs = [torch.cuda.CUDAGraph() for _ in parts]
        for graph, part in zip(self.graphs, parts, strict=True):
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                part()

    def _begin(self, system: System, iteration: Iteration[S]) -> None:
        """The weights as they are, and the state before the first step."""
        assert system.renew is not None
        self.evaluate = system.renew()
        self._keep(iteration.begin(self.z, self.scale, system.start(self.z)))
        self.count.zero_()

    def _step(self, state: S, iteration: Iteration[S]) -> None:
        self._show(state)
        iteration.step(state, self.evaluate, self.count)
        self._keep(state)
        self.count.add_(1)
        self.left.copy_((~self.buffers["gone"]).sum())

    def _end(self, state: S, iteration: Iteration[S]) -> None:
        self._show(state)
        self.solution = iteration.end(state)

    def _show(self, state: S) -> None:
        for name, buffer in self.buffers.items():
            setattr(state, name, buffer)
        state.z, state.scale = self.z, self.scale  # type: ignore[attr-defined]

    def _keep(self, state: S) -> None:
        for name, buffer in self.buffers.items():
            if (value := getattr(state, name)) is not buffer:
                buffer.copy_(value)

    def is_for(self, system: System) -> bool:
        """Whether the system still has its tensors where the graphs read them."""
        present = system.tensors()
        return len(self.tensors) == len(present) and all(
            a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
            for a, b in zip(self.tensors, present, strict=True)
        )

    def __call__(self, z: Tensor, scale: Tensor, max_steps: int) -> Solution:
        """The solution, in tensors that are its own."""
        begin, step, end = self.graphs
        self.z.copy_(z)
        self.scale.copy_(scale)
        begin.replay()
        for _ in range(max_steps + 1):
            step.replay()
            if int(self.left) == 0:
                break
        end.replay()
        found = self.solution
        own = replace(
            found,
            value=found.value.clone(),
            status=found.status.clone(),
            residual=found.residual.clone(),
            steps=found.steps.clone(),
            evaluations=found.evaluations.clone(),
        )
        # Whoever comes next may be on another stream, and graphs share their memory.
        torch.cuda.current_stream(z.device).synchronize()
        return own


def solve_captured(
    system: System, z: Tensor, scale: Tensor, iteration: Iteration[S], max_steps: int
) -> Solution | None:
    """The solution by recorded steps, at most ``max_steps`` of them; None where there are none.

    There are none while another thread uses them, where the system does not allow it, and where
    recording failed.
    """
    if system.renew is None or torch.cuda.is_current_stream_capturing():
        return None
    if not _alone.acquire(blocking=False):
        return None
    try:
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(z.device):
            known = _known(system, z, iteration)
            return None if known is None else known(z, scale, max_steps)
    finally:
        _alone.release()


def _known(system: System, z: Tensor, iteration: Iteration[S]) -> CapturedSolve[S] | None:
    place = (*iteration.key, tuple(z.shape), z.dtype, z.device)
    kept: dict[Any, Any] = system.memory.setdefault("captured", {})
    found = kept.pop(place, None)
    if isinstance(found, CapturedSolve) and not found.is_for(system):
        found = None
    if found is None:
        try:
            found = CapturedSolve(system, z, iteration)
        except RuntimeError as error:
            _log.warning("%s: steps are not recorded as a CUDA graph (%s)", system.name, error)
            found = "impossible"
    kept[place] = found  # the latest is the last
    while len(kept) > GRAPHS:
        del kept[next(iter(kept))]
    return found if isinstance(found, CapturedSolve) else None


def _is_buffer(name: str, value: object) -> bool:
    return isinstance(value, Tensor) and name not in ("z", "scale")
