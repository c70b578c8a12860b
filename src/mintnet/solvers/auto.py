"""The default solver: one fixed rule, the same for every call."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mintnet.solvers.base import ChannelBlocks, Solver, StructureError, System, sorted_by
from mintnet.solvers.bisection import Bisection
from mintnet.solvers.fixed_point import FixedPoint
from mintnet.solvers.solution import Solution, improved
from mintnet.solvers.wavefront import Wavefront

WORK_PER_LEVEL = {"cpu": 1.2e8, "cuda": 1.6e11}
"""Operations that take as long as the overhead of one level of the wavefront: 1 to 3.5 ms measured
on one core that does 74 GFLOP/s; on an H200 some 8 ms of launches at 20 TFLOP/s."""
WORK_PER_CAPTURED_LEVEL = 4e9
"""The same where the levels are one CUDA graph: about 0.2 ms."""
WAVEFRONT_FIRST = 16
"""The wavefront of a layer with `System.levels` that costs no more evaluations comes first."""
WORK_OF_BLOCKS = {"cpu": 0.0, "cuda": 8e9}
"""Operations of a step, for all samples, from which on channel blocks pay: on a GPU, launching the
steps of four blocks takes longer than those that the blocks save in a small layer."""
WAVEFRONT_PASSES = 3
"""What the wavefront costs beside its levels, in evaluations of f."""

MOST_STEPS = 200
POLISHING_STEPS = 4
"""Steps of a whole layer from a point where each of its blocks is solved; most need one."""

BISECTABLE = 512
"""Coordinates of a sample up to which bisection is worth its time: it costs D² evaluations."""


@dataclass(frozen=True)
class Auto(Solver):
    """Safeguarded Newton steps, then the wavefront for the samples that are left, then bisection.

    0. Where a layer solves level by level by itself, the wavefront, if it costs few evaluations
       (`WAVEFRONT_FIRST`).
    1. Damped steps of Algorithm 1 with α = 1: channel block after channel block where the layer
       has several channels and enough work (`WORK_OF_BLOCKS`), then of the whole layer. A sample
       goes on while it promises to be done before the wavefront would be, both counted in
       operations (`wavefront_cost`).
    2. What is left goes to the wavefront, which is exact; where the structure has none, to as many
       steps as there are coordinates, after which a triangular system has ended.
    3. What rounding has left is polished by a few steps; then small samples go to bisection.

    The rule has no clock and no memory: the same z and weights on the same device give the same
    bits in every call. An answer counts only with its residual.
    """

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        levels = system.levels(z) is not None
        captured, attempts = levels and z.is_cuda, [_wavefront, _polish, _bisection]
        cost = wavefront_cost(system, z, captured)
        pays = system.work * len(z) >= WORK_OF_BLOCKS.get(z.device.type, 0.0)
        blocks = system.blocks() if pays else None
        if levels and cost is not None and cost <= WAVEFRONT_FIRST:
            solution, attempts = Wavefront()._solve(system, z, scale), attempts[1:]
        elif blocks is None:
            solution = _newton(cost, 1)._solve(system, z, scale)
        else:
            start, before = _block_by_block(blocks, cost, z, scale)
            newton = FixedPoint(max_steps=POLISHING_STEPS, damped=True)
            solution = newton._solve(system, z, scale, start)
            steps, evaluations = solution.steps + before, solution.evaluations + before
            solution = replace(solution, steps=steps, evaluations=evaluations)
        for attempt in attempts:
            left = ~solution.converged
            if not bool(left.any()):
                break
            if captured and attempt is _wavefront:  # each batch size would have a graph of its own
                rest = Wavefront()._solve(system, z, scale).rows(left)
            else:
                found = attempt(system.rows(left), z[left], scale[left], solution.value[left])
                if found is None:
                    break
                rest = found
            solution = improved(solution, rest, left)
        return solution


def wavefront_cost(system: System, z: Tensor, captured: bool = False) -> float | None:
    """What the wavefront costs, in evaluations of f; None where nothing is known of either."""
    if system.work == 0 or z.dim() not in (2, 4):
        return None
    c, h, w = (*z.shape[1:], 1, 1)[:3]
    levels: int = 4 * (c - 1) + 2 * (h - 1) + w if z.dim() == 4 else c
    each = WORK_PER_LEVEL.get(z.device.type, WORK_PER_LEVEL["cpu"])
    overhead = levels * (WORK_PER_CAPTURED_LEVEL if captured else each)
    return WAVEFRONT_PASSES + overhead / (system.work * len(z))


def _newton(cost: float | None, blocks: int) -> FixedPoint:
    """Safeguarded Newton steps that stop when the wavefront would be faster."""
    if cost is None:
        return FixedPoint(max_steps=30, damped=True)
    # A step of one of G blocks costs about 1 / G² of one of the layer: each may take G times more.
    steps = min(math.ceil(2 * cost * blocks), MOST_STEPS)
    # Where even the most steps cost less than the wavefront, no sample is given up before them.
    patience = cost * blocks if steps < MOST_STEPS else None
    return FixedPoint(max_steps=steps, damped=True, patience=patience)


def _block_by_block(
    blocks: ChannelBlocks, cost: float | None, z: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """x by forward substitution over channel blocks, and the mean steps of a block, rounded up.

    Samples that a block does not solve take no part in the blocks after it and hold 0 there.
    """
    newton = _newton(cost, len(blocks.channels))
    known: list[tuple[Tensor, ...]] = []
    values = [torch.zeros_like(z[:, channels]) for channels in blocks.channels]
    rows = torch.arange(len(z), device=z.device)
    taken = torch.zeros_like(rows)
    for index, channels in enumerate(blocks.channels):
        given = blocks.given(index, known)
        system = replace(blocks.system(index), context=given)
        found = newton._solve(system, z[rows][:, channels], scale[rows])
        value, solved = torch.nan_to_num(found.value, nan=0.0), found.converged
        taken[rows] += found.steps
        values[index][rows] = value
        known.append(blocks.activations(index, value, given))
        if not z.is_cuda and not bool(solved.all()):  # on a GPU each batch size has its own graph
            rows, known = rows[solved], [tuple(part[solved] for part in parts) for parts in known]
            if not len(rows):
                break
    steps = (taken + len(values) - 1) // len(values)
    return torch.cat(sorted_by(blocks.channels, values), 1), steps


def _wavefront(system: System, z: Tensor, scale: Tensor, value: Tensor) -> Solution:
    try:
        return Wavefront()._solve(system, z, scale)
    except StructureError:
        return FixedPoint(max_steps=z.shape[1:].numel() + 20)._solve(system, z, scale)


def _polish(system: System, z: Tensor, scale: Tensor, value: Tensor) -> Solution:
    """A few steps from the best point so far."""
    start = torch.where(value.isfinite(), value, system.start(z))
    return FixedPoint(max_steps=40)._solve(system, z, scale, start)


def _bisection(system: System, z: Tensor, scale: Tensor, value: Tensor) -> Solution | None:
    small = z.shape[1:].numel() <= BISECTABLE
    return Bisection()._solve(system, z, scale) if small else None
