"""Solutions of several batches, and progress told layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mintnet.solvers import Solution, Solver, System

Progress = Callable[[int, int], None]  # called with how much is done and how much there is


@dataclass(frozen=True)
class Reporting(Solver):
    """A solver that calls ``report`` after each layer that it has solved."""

    solver: Solver
    report: Callable[[], None]

    def solve(self, system: System, z: Tensor) -> Solution:
        solution = self.solver.solve(system, z)
        self.report()
        return solution

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        return self.solver._solve(system, z, scale)


def join_solutions(solutions: Sequence[Solution]) -> Solution:
    """The solutions of several batches as that of one."""
    if len(solutions) == 1:
        return solutions[0]
    columns = zip(*(solution.parts for solution in solutions), strict=True)
    parts = tuple(join_solutions(column) for column in columns)
    names = ("value", "status", "residual", "steps", "evaluations")
    joined = {name: torch.cat([getattr(each, name) for each in solutions]) for name in names}
    return Solution(name=solutions[0].name, parts=parts, **joined)
