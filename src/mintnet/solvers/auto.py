"""The default solver: one fixed rule, the same for every call."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mintnet.solvers.base import Solver, StructureError, System
from mintnet.solvers.bisection import Bisection
from mintnet.solvers.fixed_point import FixedPoint
from mintnet.solvers.solution import Solution, Status, improved
from mintnet.solvers.wavefront import Wavefront

# Operations that take as long as the overhead of one level of the wavefront: 1 to 3.5 ms measured
# on one core that does 74 GFLOP/s; on an H200 some 8 ms of launches at 20 TFLOP/s.
WORK_PER_LEVEL = {"cpu": 1.2e8, "cuda": 1.6e11}
WORK_PER_CAPTURED_LEVEL = 4e9  # the same where the levels are one CUDA graph: about 0.2 ms
WAVEFRONT_PASSES = 3  # what the wavefront costs beside its levels, in evaluations of f
WAVEFRONT_FIRST = 12  # evaluations: a wavefront of no more comes before steps of Algorithm 1
MOST_STEPS = 200
REFINED = 1e-10  # the residual at which an x known in float32 is refined: far below its rounding
BISECTABLE = 512  # coordinates up to which bisection is worth its time: it costs D² evaluations


@dataclass(frozen=True)
class Auto(Solver):
    """Safeguarded Newton steps, then the wavefront for the samples that are left, then bisection.

    1. Damped steps of Algorithm 1 with α = 1. A sample goes on while it promises to be done before
       the wavefront would be, both counted in operations (`wavefront_cost`). Where the wavefront
       costs few evaluations (`WAVEFRONT_FIRST`) there are no such steps.
    2. What is left goes to the wavefront, which is exact; where the structure has none, to as many
       steps as there are coordinates, after which a triangular system has ended.
    3. What rounding has left is polished by a few steps; then small samples go to bisection.

    Where x is known nearly (`System.near`), the steps begin there and end at `REFINED`. In float32,
    samples that are as near as rounding lets them come are left to float64, as is bisection.

    The rule has no clock and no memory: the same z and weights on the same device give the same
    bits in every call. An answer counts only with its residual.
    """

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        cost, narrow = wavefront_cost(system, z), z.dtype == torch.float32
        attempts = [_wavefront, _polish] if narrow else [_wavefront, _polish, _bisection]
        if system.near is not None:
            steps = FixedPoint(max_steps=40, tolerance=REFINED, damped=True)
            solution = steps._solve(system, z, scale)
        elif cost is not None and cost <= WAVEFRONT_FIRST:
            solution, attempts = _wavefront(system, z, scale, z), attempts[1:]
        else:
            solution = _newton(cost)._solve(system, z, scale)
        for attempt in attempts:
            left = ~solution.converged & ~(narrow & (solution.status == Status.INACCURATE))
            if not bool(left.any()):
                break
            # On a GPU each number of samples needs graphs of its own: there all are solved again.
            some = torch.ones_like(left) if z.is_cuda else left
            rest = attempt(system.rows(some), z[some], scale[some], solution.value[some])
            if rest is None:
                break
            solution = improved(solution, rest.rows(left[some]), left)
        return solution


def wavefront_cost(system: System, z: Tensor) -> float | None:
    """What the wavefront costs, in evaluations of f; None where nothing is known of either."""
    if system.work == 0 or z.dim() not in (2, 4):
        return None
    (c, h, w), function = (*z.shape[1:], 1, 1)[:3], system.levels(z)
    each = WORK_PER_LEVEL.get(z.device.type, WORK_PER_LEVEL["cpu"])
    if function is not None:
        c, each = c // function.members, WORK_PER_CAPTURED_LEVEL if z.is_cuda else each
    levels: int = 4 * (c - 1) + 2 * (h - 1) + w if z.dim() == 4 else c
    return WAVEFRONT_PASSES + levels * each / (system.work * len(z))


def _newton(cost: float | None) -> FixedPoint:
    """Safeguarded Newton steps that stop when the wavefront would be faster."""
    if cost is None:
        return FixedPoint(max_steps=30, damped=True)
    steps = min(math.ceil(2 * cost), MOST_STEPS)
    # Where even the most steps cost less than the wavefront, no sample is given up before them.
    return FixedPoint(max_steps=steps, damped=True, patience=cost if steps < MOST_STEPS else None)


def _wavefront(system: System, z: Tensor, scale: Tensor, value: Tensor) -> Solution:
    try:
        return Wavefront()._solve(system, z, scale)
    except StructureError:
        return FixedPoint(max_steps=z.shape[1:].numel() + 20)._solve(system, z, scale)


def _polish(system: System, z: Tensor, scale: Tensor, value: Tensor) -> Solution:
    """A few steps from the best point so far."""
    return FixedPoint(max_steps=40)._solve(replace(system, near=value), z, scale)


def _bisection(system: System, z: Tensor, scale: Tensor, value: Tensor) -> Solution | None:
    return Bisection()._solve(system, z, scale) if z.shape[1:].numel() <= BISECTABLE else None
