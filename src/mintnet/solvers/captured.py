"""Steps of an iteration as a CUDA graph: on a GPU, launching a step costs more than the step.

A graph is recorded when a system is first solved with a shape, and replayed from then on. It
reads the system's tensors where they are, so that weights which change in place are seen; when
one of them has moved, the graph is dropped. Samples do not leave the batch one by one: a step for
all costs little more than one for a few. Only where steps are slow, and half of the samples are
done, the others go on in a graph of half the size.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from mintnet.solvers.base import System
from mintnet.solvers.blocks import Evaluate
from mintnet.solvers.replay import Recorder, Watched, alone, is_recording, on_device_of
from mintnet.solvers.solution import Solution

GRAPHS = 12
"""The most graphs that are kept for one system."""

SLOW = 5e-4
"""Seconds of a step from which on it pays to let samples leave the batch, half of it at a time."""
FEWEST = 8
"""The smallest batch that is worth a graph of its own."""

S = TypeVar("S")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Iteration(Generic[S]):
    """What is recorded, in functions that read nothing back to the host.

    Attributes:
        key: tells iterations apart.
        begin: (z, scale, x₀, what is given) ↦ the state, an object with tensors for attributes;
            its ``gone`` says which samples are done.
        step: (state, evaluate, number of the step): replaces tensors of the state by others.
        end: what came of it.
    """

    key: tuple[Any, ...]
    begin: Callable[[Tensor, Tensor, Tensor, Tensor | None], S]
    step: Callable[[S, Evaluate, Tensor], None]
    end: Callable[[S], Solution]


class CapturedSolve(Generic[S]):
    """An iteration on one system and shape as three graphs: begin, step, end."""

    def __init__(self, system: System, z: Tensor, iteration: Iteration[S]) -> None:
        assert system.renew is not None
        self.watched = Watched(system.tensors())
        self.expected = 1
        """Steps that are taken before the first look at what is left."""
        self.seconds_per_step = 0.0
        self.z, self.scale = z.clone(), z.new_ones(len(z))
        self.count = torch.zeros((), dtype=torch.long, device=z.device)
        self.left = self.count.clone()
        self.given = None if system.given is None else _shared(system.given)
        state = iteration.begin(self.z, self.scale, self.z, self.given)
        self.buffers = {k: v.clone() for k, v in vars(state).items() if _is_buffer(k, v)}
        begin, step, end = (
            partial(self._begin, system, iteration),
            partial(self._step, state, iteration),
            partial(self._end, state, iteration),
        )
        self.recorder = Recorder(z.device)
        self.recorder.warm_up(begin, step, begin, step)
        self.begin, self.step, self.end = map(self.recorder.record, (begin, step, end))

    def _begin(self, system: System, iteration: Iteration[S]) -> None:
        """The weights as they are, and the state before the first step."""
        assert system.renew is not None
        self.evaluate = system.renew()
        self._keep(iteration.begin(self.z, self.scale, system.start(self.z), self.given))
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
        state.z, state.scale, state.given = self.z, self.scale, self.given  # type: ignore[attr-defined]

    def _keep(self, state: S) -> None:
        # A value may be another buffer, which is about to change: the last x is x itself.
        own = {id(buffer) for buffer in self.buffers.values()}
        pairs = [(buffer, getattr(state, name)) for name, buffer in self.buffers.items()]
        pairs = [(b, v.clone() if id(v) in own and v is not b else v) for b, v in pairs]
        for dtype in {buffer.dtype for buffer, _ in pairs}:  # one launch for each
            changed = [(b, value) for b, value in pairs if value is not b and b.dtype == dtype]
            if changed:
                torch._foreach_copy_([b for b, _ in changed], [value for _, value in changed])

    def is_for(self, system: System) -> bool:
        """Whether the system still has its tensors where the graphs read them."""
        return self.watched.are(system.tensors())

    def __call__(
        self,
        z: Tensor,
        scale: Tensor,
        max_steps: int,
        smaller: Smaller[S],
        start: Tensor | None = None,
    ) -> Solution:
        """The solution, in tensors that are its own.

        Args:
            z: to be solved for.
            scale: of the residuals.
            max_steps: the most steps.
            smaller: the same for some of the samples, if there is one.
            start: where to begin, if it is not where the system says.
        """
        self._take(z, scale, smaller.system.given)
        if start is not None:
            for name in STARTS & self.buffers.keys():
                self.buffers[name].copy_(start)
            if "first" in self.buffers:  # who begins near the end has not left if it ends farther
                self.buffers["first"].fill_(float("inf"))
        return self._run(max_steps, smaller)

    def _take(self, z: Tensor, scale: Tensor, given: Tensor | None) -> None:
        self.z.copy_(z)
        self.scale.copy_(scale)
        if self.given is not None and given is not None:
            self.given.copy_(given)
        self.begin()

    def _go_on(self, other: CapturedSolve[S], rows: Tensor, steps: int, smaller: Smaller[S]) -> Any:
        """Some samples of another solve from where they are."""
        given = None if other.given is None else other.given[rows]
        self._take(other.z[rows], other.scale[rows], given)
        for name, buffer in self.buffers.items():
            buffer.copy_(other.buffers[name][rows])
        self.count.copy_(other.count)
        return self._run(steps, smaller)

    def _run(self, max_steps: int, smaller: Smaller[S]) -> Solution:
        begin, taken, rest = time.perf_counter(), 0, None
        while taken <= max_steps:
            self.step()
            taken += 1
            if taken < self.expected:
                continue
            left = int(self.left)
            if left == 0:
                break
            self.seconds_per_step = (time.perf_counter() - begin) / taken
            size = 1 << (max(left, smaller.least) - 1).bit_length()
            slow = self.seconds_per_step > SLOW and taken <= max_steps
            if slow and 2 * size <= len(self.z):
                rows = self.buffers["gone"].long().argsort(stable=True)[:size]
                if (small := smaller.graph_for(self, rows)) is not None:
                    rest = rows, small._go_on(self, rows, max_steps - taken, smaller)
                    break
        # Fewer looks where a solve takes about as long as the last one did.
        self.expected = min(taken - 1, self.expected + 2) or 1
        self.end()
        found = {name: getattr(self.solution, name).clone() for name in FOUND}
        self.recorder.finish()
        if rest is None:
            self.seconds_per_step = (time.perf_counter() - begin) / taken
            return replace(self.solution, **found)
        rows, answer = rest
        for name, tensor in found.items():
            tensor.index_copy_(0, rows, getattr(answer, name))
        return replace(self.solution, **found)


@dataclass(frozen=True)
class Smaller(Generic[S]):
    """Solves of some of the samples, down to an eighth of them, so that there are few graphs."""

    system: System
    iteration: Iteration[S]
    least: int

    @staticmethod
    def of(system: System, iteration: Iteration[S], whole: int) -> Smaller[S]:
        """For a batch of ``whole`` samples."""
        return Smaller(system, iteration, max(FEWEST, -(-whole // 8)))

    def graph_for(self, whole: CapturedSolve[S], rows: Tensor) -> CapturedSolve[S] | None:
        """The one for so many samples."""
        given = None if whole.given is None else whole.given[rows]
        return _known(replace(self.system, given=given), whole.z[rows], self.iteration)


FOUND = ("value", "status", "residual", "steps", "evaluations")
STARTS = {"x", "best", "last_x"}
_given: WeakValueDictionary[tuple[Any, ...], Tensor] = WeakValueDictionary()


def _shared(given: Tensor) -> Tensor:
    """A buffer for what is given, one for all graphs that want such a one: it may be large.

    Graphs are replayed one at a time, and each has it filled before.
    """
    place = (tuple(given.shape), given.dtype, given.device)
    buffer = _given.get(place)
    if buffer is None:
        _given[place] = buffer = torch.empty_like(given, memory_format=torch.contiguous_format)
    return buffer


def solve_captured(
    system: System,
    z: Tensor,
    scale: Tensor,
    iteration: Iteration[S],
    max_steps: int,
    start: Tensor | None = None,
) -> Solution | None:
    """The solution by recorded steps, at most ``max_steps`` of them; None where there are none.

    There are none while another thread uses them, where the system does not allow it, and where
    recording failed. ``start`` is where to begin, if it is not where the system says.
    """
    if system.renew is None or is_recording(z):
        return None
    if not alone.acquire(blocking=False):
        return None
    try:
        with torch.inference_mode(False), torch.no_grad(), on_device_of(z):
            known = _known(system, z, iteration)
            if known is None:
                return None
            return known(z, scale, max_steps, Smaller.of(system, iteration, len(z)), start)
    finally:
        alone.release()


def _known(system: System, z: Tensor, iteration: Iteration[S]) -> CapturedSolve[S] | None:
    place = (*iteration.key, tuple(z.shape), z.dtype, z.device)
    kept: dict[Any, Any] = system.memory.setdefault("captured", {})
    found = kept.pop(place, None)
    if isinstance(found, CapturedSolve) and not found.is_for(system):
        found = None
    if found is None:
        try:
            found = CapturedSolve(system, z, iteration)
        except torch.OutOfMemoryError:
            return None  # this once: another time there may be room
        except RuntimeError as error:
            _log.warning("%s: steps are not recorded as a CUDA graph (%s)", system.name, error)
            found = "impossible"
    kept[place] = found  # the latest is the last
    while len(kept) > GRAPHS:
        del kept[next(iter(kept))]
    return found if isinstance(found, CapturedSolve) else None


def _is_buffer(name: str, value: object) -> bool:
    return isinstance(value, Tensor) and name not in ("z", "scale", "given")
