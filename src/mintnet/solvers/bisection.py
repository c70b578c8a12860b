"""One coordinate after another: slow, and right whenever the function is monotone."""

from dataclasses import dataclass

from torch import Tensor

from mintnet.solvers.base import Solver, System
from mintnet.solvers.solution import Solution, checked, relative_residual
from mintnet.solvers.verified import TOLERANCES
from mintnet.solvers.wavefront import solve_in_turn


@dataclass(frozen=True)
class Bisection(Solver):
    """Solve the coordinates in their order, each by bracketing and halving.

    With the earlier coordinates solved, each is a monotone equation in one unknown. It needs
    no more, but some sixty full evaluations a coordinate. Use it to check other solvers.
    """

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        order = system.ordering.rank(tuple(z.shape[1:])).flatten().argsort().to(z.device)
        value, steps = solve_in_turn(system, z, order.split(1), scale, newton=False)
        residual = relative_residual(system(value)[0] - z, scale)
        return checked(system.name, value, residual, scale, TOLERANCES[z.dtype], steps, steps + 2)
