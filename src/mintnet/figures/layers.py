"""How an inversion went, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mintnet.bijections import TriangularBijection
from mintnet.models import Flow
from mintnet.solvers import Auto, ResidualIteration, Solution, Solver, System

BATCH = 64


@dataclass(frozen=True)
class LayerRow:
    """One layer of a net in an inversion.

    Attributes:
        number: which Mint layer it is, or coupling, counted from 1 at the image's side; squeezes do
            not count.
        name: what it is.
        median_steps: the median over the samples.
        most_steps: the largest number over the samples.
        residual: the worst, as a share of the largest |z| that enters the layer's inverse.
        failures: samples that are not certified.
    """

    number: int
    name: str
    median_steps: float
    most_steps: int
    residual: float
    failures: int

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data."""
        return asdict(self)


def layer_rows(solution: Solution) -> list[LayerRow]:
    """The layers of a solved net that need a solver or failed, from the image's side on.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> rows = layer_rows(flow.solve(flow.sample_latents(3, seed=0)))
        >>> len(rows), rows[0].number, rows[0].failures
        (12, 1, 0)
    """
    rows, number = [], 0
    for part in reversed(solution.parts):
        failures = int((~part.converged).sum())
        solved = bool((part.evaluations > 1).any())  # formulas are of no interest here
        solved |= any(kind in part.name for kind in ("MintLayer", "RealNVPCoupling"))
        number += solved
        if solved or failures:
            steps = part.steps.double()
            rows.append(
                LayerRow(
                    number,
                    part.name,
                    float(steps.median()) if len(steps) else 0.0,
                    int(steps.max()) if len(steps) else 0,
                    float(part.residual.max()) if len(steps) else 0.0,
                    failures,
                )
            )
    return rows


def solve_in_batches(
    flow: Flow,
    z: Tensor,
    solver: Solver | None = None,
    batch: int = BATCH,
    tick: Callable[[float], None] | None = None,
) -> Solution:
    """The inverse of the flow's net for any number of samples.

    ``tick`` hears of each layer of each batch, as a share of the samples: n of them in all.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> z = flow.sample_latents(5, seed=0)
        >>> solve_in_batches(flow, z, batch=2).value.shape
        torch.Size([5, 1, 8, 8])
    """
    if not len(z):
        raise ValueError("expected at least one sample; got none")
    solutions = []
    for part in z.split(batch):
        solutions.append(solve_aloud(flow, part, solver, tick))
    return join_solutions(solutions)


def solve_aloud(
    flow: Flow, z: Tensor, solver: Solver | None, tick: Callable[[float], None] | None
) -> Solution:
    """``flow.solve(z, solver)``; ``tick`` hears of shares of the samples, one a solved layer."""
    if tick is None or isinstance(solver, ResidualIteration):  # i-ResNets look for that class
        solution = flow.solve(z, solver)
        if tick:
            tick(len(z))
        return solution
    layers = sum(isinstance(leaf, TriangularBijection) for leaf in flow.net.chain.leaves())
    share = len(z) / (layers + 1)  # the last one is the check end to end, and what has a formula
    told: list[float] = []

    def tell() -> None:
        if len(told) < layers:  # a layer with very small samples is solved twice
            told.append(share)
            tick(share)

    solution = flow.solve(z, _Aloud(solver or Auto(), tell))
    tick(len(z) - sum(told))
    return solution


@dataclass(frozen=True)
class _Aloud(Solver):
    """A solver that says when a layer is solved."""

    solver: Solver
    tell: Callable[[], None]

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        solution = self.solver._solve(system, z, scale)
        self.tell()
        return solution


def join_solutions(solutions: Sequence[Solution]) -> Solution:
    """The solutions of several batches as that of one."""
    if len(solutions) == 1:
        return solutions[0]

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(solution, name) for solution in solutions])

    first = solutions[0]
    columns = zip(*(solution.parts for solution in solutions), strict=True)
    return Solution(
        name=first.name,
        value=joined("value"),
        status=joined("status"),
        residual=joined("residual"),
        steps=joined("steps"),
        evaluations=joined("evaluations"),
        parts=tuple(join_solutions(column) for column in columns),
    )
