"""One coordinate after another: slow, and right whenever the function is monotone."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mintnet.solvers.base import Solver, System
from mintnet.solvers.solution import Solution, checked, relative_residual
from mintnet.solvers.verified import TOLERANCES

MOST_DOUBLINGS = MOST_HALVINGS = 200
"""How often a bracket may double before the target counts as out of reach, and how often halve."""
Excess = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Bisection(Solver):
    """Solve the coordinates in their order, each by bracketing and halving.

    With the earlier coordinates solved, each is a monotone equation in one unknown. It needs
    no more, but some sixty full evaluations a coordinate. Use it to check other solvers.
    """

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        shape, order = z.shape, system.ordering.rank(tuple(z.shape[1:])).flatten().argsort()
        tolerance = TOLERANCES[z.dtype]
        x, target, steps, evaluations = system.start(z).flatten(1), z.flatten(1), 0, 1
        out_of_reach = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        for i in order.tolist():
            slope = system(x.reshape(shape))[1].flatten(1)[:, i]
            increasing = torch.where(slope < 0, -1, 1)

            def excess(value: Tensor, i: int = i, sign: Tensor = increasing) -> Tensor:
                """sign · (fᵢ − zᵢ) with xᵢ = value: increasing in value."""
                x[:, i] = value
                return sign * (system(x.reshape(shape))[0].flatten(1)[:, i] - target[:, i])

            low, high, bracketed, grown = _bracket(excess, x[:, i].clone(), slope)
            out_of_reach |= ~bracketed
            low, high, halved = _halve(excess, low, high)
            nearer = excess(low).abs() <= excess(high).abs()
            x[:, i] = torch.where(nearer, low, high)
            steps += grown + halved
            evaluations += grown + halved + 4
        value = x.reshape(shape)
        residual = relative_residual(system(value)[0] - z, scale)
        residual[out_of_reach & (residual > tolerance)] = float("inf")
        return checked(system.name, value, residual, scale, tolerance, steps, evaluations)


def _bracket(excess: Excess, start: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Ends with excess(low) ≤ 0 ≤ excess(high), which samples have them, and the doublings."""
    at_start = excess(start)
    reach = (at_start / slope).abs().clamp(min=torch.finfo(start.dtype).eps)
    reach = torch.where(reach.isfinite(), reach, 1.0)
    near = far = start
    beyond, doublings = at_start == 0, 0
    while doublings < MOST_DOUBLINGS and not bool(beyond.all()):
        doublings += 1
        near = torch.where(beyond, near, far)
        far = torch.where(beyond, far, far - at_start.sign() * reach)
        beyond = beyond | (excess(far).sign() != at_start.sign())
        reach = 2 * reach
    above = at_start > 0
    return torch.where(above, far, near), torch.where(above, near, far), beyond, doublings


def _halve(excess: Excess, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, int]:
    """The bracket shrunk to neighbouring numbers, and how many times it was halved."""
    for halvings in range(MOST_HALVINGS):
        middle = low + (high - low) / 2
        open_ = (middle != low) & (middle != high)
        if not bool(open_.any()):
            return low, high, halvings
        above = excess(middle) > 0
        low = torch.where(open_ & ~above, middle, low)
        high = torch.where(open_ & above, middle, high)
    return low, high, MOST_HALVINGS
