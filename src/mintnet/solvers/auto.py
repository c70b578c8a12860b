"""The default solver: fast where the layer is easy, exact where it is hard."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mintnet.solvers.base import Solver, System
from mintnet.solvers.bisection import Bisection
from mintnet.solvers.dual import StructureError
from mintnet.solvers.fixed_point import FixedPoint
from mintnet.solvers.solution import Solution
from mintnet.solvers.wavefront import Wavefront

EASY = 8
"""Steps of Algorithm 1 that no other solver beats, so that none is tried."""

BISECTABLE = 512
"""Coordinates of a sample up to which bisection is worth its time."""

ROUTES: dict[str, Solver] = {
    "full steps": FixedPoint(step=1.0, max_steps=60),
    "damped steps": FixedPoint(step=2 / 3, max_steps=200),
    "small steps": FixedPoint(step=0.35, max_steps=300),
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
    """

    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    calls: int = 0
    explored: bool = False

    @property
    def hard(self) -> bool:
        """Whether looking for another route than full steps is worth while."""
        return self.steps > EASY or self.seconds.get("full steps") == float("inf")

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
    once to the fastest of full steps, damped steps (α = 2/3 and 0.35) and the wavefront.

    Args:
        patience: the most steps of Algorithm 1 in a layer of which nothing is known yet.
    """

    patience: int = 30

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        known = _experience(system, z)
        known.calls += 1
        if known.calls == 1:
            first = FixedPoint(step=1.0, max_steps=self.patience)
            solution = _timed("full steps", first, system, z, scale, known)
        elif known.hard and not known.explored:
            solution = self._explore(system, z, scale, known)
        else:
            route = known.best()
            solution = _timed(route, ROUTES[route], system, z, scale, known)
        left = ~solution.converged
        if not bool(left.any()):
            return solution
        rest = _exactly(system, z[left], scale[left], solution.value[left])
        return _merged(solution, rest, left)

    def _explore(self, system: System, z: Tensor, scale: Tensor, known: Experience) -> Solution:
        """Every route once; of the answers, the one with most samples certified."""
        known.explored = True
        answers = []
        for route, solver in ROUTES.items():
            try:
                answers.append(_timed(route, solver, system, z, scale, known))
            except StructureError:
                known.seconds[route] = float("inf")
        return max(answers, key=lambda answer: int(answer.converged.sum()))


def _timed(
    route: str, solver: Solver, system: System, z: Tensor, scale: Tensor, known: Experience
) -> Solution:
    """One route for the whole batch; its time counts only if it certified every sample."""
    begin = _now(z)
    solution = solver._solve(system, z, scale)
    certified = bool(solution.converged.all())
    known.seconds[route] = _now(z) - begin if certified else float("inf")
    if route == "full steps" and certified:
        known.steps = max(known.steps, int(solution.steps.max()))
    return solution


def _exactly(system: System, z: Tensor, scale: Tensor, value: Tensor) -> Solution:
    """The wavefront; then what it leaves is polished by full steps; then bisection.

    Without a wavefront, as many full steps as there are coordinates stand in for it. Bisection
    is for small samples: its cost grows with the square of their size.
    """

    def start(z: Tensor) -> Tensor:
        return torch.where(value.isfinite(), value, system.start(z))

    try:
        solution = Wavefront()._solve(system, z, scale)
    except StructureError:
        solution = FixedPoint(max_steps=z[0].numel() + 20)._solve(system, z, scale)
    value = solution.value
    attempts: list[tuple[Solver, System]] = [
        (FixedPoint(max_steps=40), replace(system, start=start))
    ]
    if z[0].numel() <= BISECTABLE:
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
        solution = _merged(solution, _rows(rest, better), mask)
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


def _merged(first: Solution, rest: Solution, left: Tensor) -> Solution:
    """The first solution with the samples it left behind taken from the other."""

    def merge(a: Tensor, b: Tensor) -> Tensor:
        return a.index_put((left,), b.to(a.dtype))

    return Solution(
        name=first.name,
        value=merge(first.value, rest.value),
        status=merge(first.status, rest.status),
        residual=merge(first.residual, rest.residual),
        steps=merge(first.steps, first.steps[left] + rest.steps),
        evaluations=merge(first.evaluations, first.evaluations[left] + rest.evaluations),
    )


def _now(z: Tensor) -> float:
    if z.is_cuda:
        torch.cuda.synchronize(z.device)
    return time.perf_counter()
