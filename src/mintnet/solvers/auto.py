"""The default solver: fast where the layer is easy, exact where it is hard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mintnet.solvers.base import Solver, System
from mintnet.solvers.bisection import Bisection
from mintnet.solvers.dual import StructureError
from mintnet.solvers.fixed_point import FixedPoint
from mintnet.solvers.fused import is_kernel_possible
from mintnet.solvers.in_turn import InTurn
from mintnet.solvers.replay import Recorder
from mintnet.solvers.solution import Solution, merged
from mintnet.solvers.wavefront import Wavefront

EASY = 8
"""Steps of Algorithm 1 that no other solver beats, so that none is tried."""

BISECTABLE = 512
"""Coordinates of a sample up to which bisection is worth its time."""

PER_LEVEL = {"cpu": 5e-4, "cuda": 2e-3}
"""Seconds that a level of the wavefront takes at the least in plain tensor operations."""

ROUTES: dict[str, Solver] = {
    "full steps": FixedPoint(step=1.0, max_steps=60),
    "channels in turn": InTurn(),
    "watched steps": FixedPoint(step=1.0, max_steps=200, watch=True),
    "damped steps": FixedPoint(step=2 / 3, max_steps=200, watch=True),
    "wavefront": Wavefront(),
}


@dataclass
class Experience:
    """What is known about solving one system at one batch size, dtype and device.

    Attributes:
        seconds: the time of each route that certified a whole batch by itself; infinite for one
            that did not.
        steps: the most steps that Algorithm 1 with α = 1 has needed.
        calls: how often the system was solved.
        explored: whether every route has been tried.
        seconds_per_step: what a step of Algorithm 1 took, when last measured.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    calls: int = 0
    explored: bool = False
    seconds_per_step: float = 0.0

    @property
    def hard(self) -> bool:
        """Whether looking for another route than full steps is worth while."""
        return self.steps > EASY or self.seconds.get("full steps") == float("inf")

    def bounded(self, solver: Solver) -> Solver:
        """Algorithm 1 with no more steps than the best route has time for.

        Not so blocks: their steps cost a fraction of those that were measured.
        """
        limit = self.least / (self.seconds_per_step or 1)
        if not isinstance(solver, FixedPoint) or not self.seconds_per_step or limit == float("inf"):
            return solver
        return replace(solver, max_steps=min(solver.max_steps, EASY + math.ceil(limit)))

    def usual(self, route: str) -> Solver:
        """A route with twice the steps that have been enough so far: more would be in vain."""
        solver = ROUTES[route]
        if route != "full steps" or not self.steps or not isinstance(solver, FixedPoint):
            return solver
        return replace(solver, max_steps=min(solver.max_steps, 2 * self.steps + EASY))

    @property
    def least(self) -> float:
        """The time of the fastest route known."""
        return min(self.seconds.values(), default=float("inf"))

    def best(self) -> str:
        """The fastest route known."""
        return min(self.seconds, key=self.seconds.__getitem__, default="full steps")


@dataclass(frozen=True)
class Auto(Solver):
    """Algorithm 1 with α = 1 first; what it leaves goes to the wavefront.

    On trained networks α = 1 converges in a few steps in most layers and never in a few. Each
    sample stops on its own and leaves the batch; those that have not converged after
    ``patience`` steps are solved exactly by the wavefront (or, where the structure has none, by
    more steps), and in the last resort coordinate by coordinate. Whatever found it, an answer
    counts only with its residual. Layers remember: from the second call on a hard layer goes at
    once to the fastest of full steps, blocks of channels in turn (`InTurn`), watched steps
    (`FixedPoint.watch`), those with α = 2/3, and the wavefront.

    Args:
        patience: the most steps of Algorithm 1 in a layer of which nothing is known yet.
        explore: time every route where a layer turns out to be hard. Where layers have hundreds
            of channels, one walk of the wavefront can take longer than all else together; without
            it, what full steps leave goes through watched and damped ones before it comes to that.
    """

    patience: int = 30
    explore: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.patience, int) or self.patience < 0:
            raise ValueError(f"patience counts steps, from 0 on; got {self.patience!r}")

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        known = _experience(system, z)
        known.calls += 1
        if known.calls == 1:
            first = FixedPoint(step=1.0, max_steps=self.patience)
            solution, certified = _timed("full steps", first, system, z, scale, known)
        elif self.explore and known.hard and not known.explored:
            solution, certified = self._explore(system, z, scale, known)
        else:
            route = known.best()
            solution, certified = _timed(route, known.usual(route), system, z, scale, known)
        for name in () if self.explore else ("watched steps", "damped steps"):
            if not certified:
                solution = _continued(ROUTES[name]._solve, system, z, scale, solution)
                certified = bool(solution.converged.all())
        if certified:
            return solution
        return _continued(_exactly, system, z, scale, solution)

    def _explore(
        self, system: System, z: Tensor, scale: Tensor, known: Experience
    ) -> tuple[Solution, bool]:
        """Every route once, none for longer than the best; the answer with most certified.

        Where the wavefront is one kernel it comes first, since its time is no gamble; elsewhere it
        is left out where so many levels cannot be walked in the time of the best.
        """
        known.explored = True
        kernel = is_kernel_possible(z)
        shortest = 0.0 if kernel else _levels(z) * PER_LEVEL.get(z.device.type, 0.0)
        answers: list[tuple[Solution, bool]] = []
        for route in reversed(ROUTES) if kernel else ROUTES:
            solver = known.bounded(ROUTES[route])
            if answers and route == "wavefront" and shortest > known.least:
                continue
            try:
                for _ in range(3 if z.is_cuda else 0):  # compilers and recorders come first
                    before = Recorder.count
                    solver._solve(system, z, scale)
                    if Recorder.count == before:
                        break
                answers.append(_timed(route, solver, system, z, scale, known))
            except StructureError:
                known.seconds[route] = float("inf")
        return max(answers, key=lambda answer: int(answer[0].converged.sum()))


def _levels(z: Tensor) -> int:
    """How many levels an image has for 3 × 3 kernels: 4c + 2r + q."""
    c, h, w = z.shape[1:] if z.dim() == 4 else (z.shape[1:].numel(), 1, 1)
    return 4 * (c - 1) + 2 * (h - 1) + w


def _timed(
    route: str, solver: Solver, system: System, z: Tensor, scale: Tensor, known: Experience
) -> tuple[Solution, bool]:
    """One route for the whole batch; its time counts only if it certified every sample."""
    begin, recordings = time.perf_counter(), Recorder.count
    solution = solver._solve(system, z, scale)
    facts = torch.stack([(~solution.converged).sum(), solution.steps.max()])
    failures, steps = facts.tolist()  # waits until the work is done
    taken = time.perf_counter() - begin
    known.seconds[route] = float("inf") if failures else taken
    if isinstance(solver, FixedPoint) and Recorder.count == recordings:
        known.seconds_per_step = taken / (steps + 1)
    if route == "full steps" and not failures:
        known.steps = max(known.steps, steps)
    return solution, not failures


def _continued(
    solve: Callable[[System, Tensor, Tensor], Solution],
    system: System,
    z: Tensor,
    scale: Tensor,
    before: Solution,
) -> Solution:
    """The solution with the samples that it left solved in another way."""
    left = ~before.converged
    tried = _enough(left)
    rest = solve(system, z[tried], scale[tried])
    return merged(before, _rows(rest, left[tried]), left)


def _enough(left: Tensor) -> Tensor:
    """On a GPU, samples that are left with others that make their number a power of 2.

    There every new size of a batch has to be planned for, and so there are few of them.
    """
    if not left.is_cuda:
        return left
    wanted = 1 << (int(left.sum()) - 1).bit_length()
    return torch.zeros_like(left).index_fill(0, (~left).argsort(stable=True)[:wanted], True)


def _exactly(system: System, z: Tensor, scale: Tensor) -> Solution:
    """The wavefront; then what it leaves is polished by full steps; then bisection.

    Without a wavefront, as many full steps as there are coordinates stand in for it. Bisection
    is for small samples: its cost grows with the square of their size.
    """

    def start(z: Tensor) -> Tensor:
        return torch.where(value.isfinite(), value, system.start(z))

    try:
        solution = Wavefront()._solve(system, z, scale)
    except StructureError:
        solution = FixedPoint(max_steps=z.shape[1:].numel() + 20)._solve(system, z, scale)
    value = solution.value
    attempts: list[tuple[Solver, System]] = [
        (FixedPoint(max_steps=40, capture=False), replace(system, start=start))
    ]  # not recorded: this start is good for this once
    if z.shape[1:].numel() <= BISECTABLE:
        attempts.append((Bisection(), system))
    for solver, attempt in attempts:
        left = ~solution.converged
        if not bool(left.any()):
            break
        value = solution.value[left]
        rest = solver._solve(attempt, z[left], scale[left])
        better = rest.converged | (rest.residual < solution.residual[left])
        chosen = left.nonzero().flatten()[better]
        mask = torch.zeros_like(left).index_fill(0, chosen, True)
        solution = merged(solution, _rows(rest, better), mask)
    return solution


def _rows(solution: Solution, rows: Tensor) -> Solution:
    """Some samples of a solution."""
    return Solution(
        solution.name,
        solution.value[rows],
        solution.status[rows],
        solution.residual[rows],
        solution.steps[rows],
        solution.evaluations[rows],
    )


def _experience(system: System, z: Tensor) -> Experience:
    size = len(z).bit_length()  # batches within a factor of two share what was learnt
    key = ("auto", z.dtype, z.device.type, size)
    found: Experience = system.memory.setdefault(key, Experience())
    return found
