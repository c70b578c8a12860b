"""The fixed point of residual layers: Algorithm 1 without the division by the slope."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mintnet.solvers.base import Solver, System
from mintnet.solvers.fixed_point import FixedPoint
from mintnet.solvers.solution import Solution


@dataclass(frozen=True)
class ResidualIteration(Solver):
    """x ← z − g(x) for f(x) = x + g(x), from x = z: the inverse of an i-ResNet block.

    It converges where g is a contraction. A Mint layer need not be one; there the `Solution` says
    how far it got.

    Args:
        max_steps: how many iterations.
        tolerance: as for `FixedPoint`: None iterates to the rounding floor, 0 runs all steps.
    """

    max_steps: int = 100
    tolerance: float | None = None

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        def evaluate(x: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
            y = system.evaluate(x, *given)[0]
            return y, torch.ones_like(y)

        other = replace(system, evaluate=evaluate, start=torch.clone)
        return FixedPoint(1.0, self.max_steps, self.tolerance)._solve(other, z, scale)
