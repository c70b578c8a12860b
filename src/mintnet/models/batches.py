"""Solutions of several batches, and progress told layer by layer."""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, TypedDict

import torch
from torch import Tensor

from mintnet.bijections import Bijection, TriangularBijection
from mintnet.bijections.base import check_solver, unreadable
from mintnet.models.deep import Labels
from mintnet.solvers import Auto, Solution, Solver, System
from mintnet.solvers.solution import FIELDS

Progress = Callable[[int, int], None]  # called with how much is done and how much there is


class Solving(TypedDict, total=False):
    """Options of inverses."""

    labels: Labels  # of a class-conditional model
    batch_size: int | None  # samples solved at once; by memory if not given
    progress: Progress | None  # called with layers solved and to solve, over all batches


class Reporting(Solver):
    """A solver that tells ``progress`` how many layers are solved of those in so many batches."""

    def __init__(
        self, solver: Solver | None, net: Bijection, times: int, progress: Progress
    ) -> None:
        check_solver(solver)
        self.solver, self.progress, self.solved = solver or Auto(), progress, 0
        self.tolerance = self.solver.tolerance
        self.total = times * sum(isinstance(leaf, TriangularBijection) for leaf in net.leaves())

    def attempt(self, system: System, z: Tensor) -> Solution:
        solution = self.solver.attempt(system, z)
        self.solved = min(self.solved + 1, self.total)  # a layer may be tried once more
        self.progress(self.solved, self.total)
        return solution

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        return self.solver._solve(system, z, scale)


def join_solutions(solutions: Sequence[Solution]) -> Solution:
    """The solutions of several batches as that of one."""
    if len(solutions) == 1:
        return solutions[0]
    columns = zip(*(solution.parts for solution in solutions), strict=True)
    parts = tuple(join_solutions(column) for column in columns)
    joined: Any = {f: torch.cat([getattr(each, f) for each in solutions]) for f in FIELDS}
    return Solution(name=solutions[0].name, parts=parts, **joined)


def batches(size: int, *inputs: Tensor | None) -> list[Any]:
    """The inputs, that many samples at a time; None stays None."""
    if torch.compiler.is_compiling():  # also in an export: a traced graph has no loop
        return [inputs]
    parts = [repeat(None) if tensor is None else tensor.split(size) for tensor in inputs]
    return list(zip(*parts, strict=False))


def finite(found: Tensor) -> Tensor:
    """Likelihoods or codes of samples; ValueError unless all are finite."""
    if not unreadable(found) and not bool(found.isfinite().all()):
        broken = int((~found.isfinite()).reshape(len(found), -1).any(1).sum())
        why = "damaged weights, or samples that are too far from all that the model knows"
        raise ValueError(f"NaN or infinite numbers for {broken} of {len(found)} samples: {why}")
    return found
