"""The wavefront inverse: each entry is computed once, level by level."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mintnet.calculus.expression import Expression, Operation
from mintnet.calculus.linear import Convolution, Dense
from mintnet.calculus.masks import MASKS
from mintnet.solvers.base import Solver, StructureError, System
from mintnet.solvers.dual import Dual, combine
from mintnet.solvers.fronts import ConditionedWalk
from mintnet.solvers.level_cache import LevelCache
from mintnet.solvers.monotone import walk_levels
from mintnet.solvers.scalar import solve_monotone
from mintnet.solvers.schedule import Level, schedule
from mintnet.solvers.solution import Solution, checked, relative_residual
from mintnet.solvers.verified import TOLERANCES


@dataclass(frozen=True)
class Wavefront(Solver):
    """Walk the levels of the ordering; on each, solve one monotone equation for each entry.

    All that an entry depends on lies on earlier levels, itself aside. With the activations of
    earlier levels kept, each masked convolution splits into a known part and the weights
    between copies of the entry's own coordinate, and what is left is an equation in one
    unknown, solved by a bracketed Newton method. The inverse costs about one forward pass plus
    these scalar solves, has no step size and converges from anywhere.

    A function with networks of strictly earlier entries (a coupling has two levels) evaluates them
    once a level, and ``evaluations`` counts that.
    """

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        if system.expression is None:
            raise StructureError(
                f"{system.name} gives no expression to walk; use FixedPoint or Bisection"
            )
        root = system.expression()
        evaluations = 2
        if any(node.conditioner is not None for node in root.nodes()):
            walk = ConditionedWalk(system, root, z)
            value, steps = walk.run(z, scale)
            evaluations = walk.depth + 1
        elif root.monotone is not None and root.sources[0].operation is Operation.INPUT:
            value, steps = walk_levels(root.monotone, z, system.context)
        else:
            value, steps = _Walk(system, root, z).run(z, scale)
        residual = relative_residual(system(value)[0] - z, scale)
        tolerance = TOLERANCES[z.dtype]
        return checked(system.name, value, residual, scale, tolerance, steps, evaluations)


class _Walk:
    """One pass over the levels for one batch.

    Arrays of a level are laid out as in `LevelCache`, (A, K, n·B).
    """

    def __init__(self, system: System, root: Expression, z: Tensor) -> None:
        shape, radius = _structure(root, system, tuple(z.shape[1:]))
        ordering = system.ordering
        self.schedule = schedule(shape, radius, ordering.upper, ordering.name)
        self.system, self.root, self.nodes = system, root, root.nodes()
        self.batch, self.device = len(z), z.device
        self.maps = {
            node: LevelCache(node.linear, self.schedule, z)
            for node in self.nodes
            if node.linear is not None
        }
        self.order = torch.cat([level.entries.flatten() for level in self.schedule.levels])
        self.order = self.order.to(z.device)
        self.valid = torch.cat([level.valid.flatten() for level in self.schedule.levels])
        self.valid = self.valid.to(z.device)
        self.constants = {
            node: self._in_order(node.constant)
            for node in self.nodes
            if isinstance(node.constant, Tensor) and node.constant.numel() > 1
        }

    def run(self, z: Tensor, scale: Tensor) -> tuple[Tensor, int]:
        """x with f(x) = z, and the most Newton steps that a level took."""
        least, sign = (
            fact.to(z).expand(z.shape[1:]).flatten()[self.order][:, None]
            for fact in self.system.slope_floor()
        )
        target = z.reshape(self.batch, -1).T[self.order] * sign  # rows of B samples, by levels
        value = torch.empty_like(target)
        steps = 0
        for number, level in enumerate(self.schedule.levels):
            known = {node: m.known_part(number, level) for node, m in self.maps.items()}
            facts = self._level_constants(level)
            direction = sign[level.span].expand(-1, self.batch).reshape(len(level.places), 1, -1)

            def evaluate(
                x: Tensor,
                columns: Tensor | None,
                level: Level = level,
                known: dict[Expression, Tensor] = known,
                facts: dict[Expression, Tensor] = facts,
                direction: Tensor = direction,
            ) -> tuple[Tensor, Tensor]:
                if columns is not None:
                    known = {node: part[..., columns] for node, part in known.items()}
                    facts = {node: part[..., columns] for node, part in facts.items()}
                    direction = direction[..., columns]
                y, slope = self._nodes(x, level, known, facts, with_slope=True)[self.root]
                slope = torch.ones_like(y) if slope is None else slope
                return y * direction, slope * direction

            shape = (len(level.places), 1, -1)
            x, taken = solve_monotone(
                evaluate,
                target[level.span].reshape(shape),
                torch.zeros_like(target[level.span]).reshape(shape),
                least[level.span].expand(-1, self.batch).reshape(shape),
                scale.repeat(level.places.shape[1]).expand(shape[0], 1, -1),
            )
            steps = max(steps, taken)
            value[level.span] = x.reshape(-1, self.batch)
            found = self._nodes(x, level, known, facts, with_slope=False)
            for node, m in self.maps.items():
                m.keep(found[node.sources[0]][0], number, level)
        return self._back(value).reshape(z.shape), steps

    def _nodes(
        self,
        x: Tensor,
        level: Level,
        known: dict[Expression, Tensor],
        facts: dict[Expression, Tensor],
        with_slope: bool,
    ) -> dict[Expression, Dual]:
        """Value and slope of every node on one level, as functions of the unknowns alone."""
        found: dict[Expression, Dual] = {}
        for node in self.nodes:
            constant = facts.get(node, node.constant)
            sources = [found[source] for source in node.sources]
            if node.operation is Operation.INPUT:
                found[node] = (x, None)
            elif node.operation is Operation.LINEAR:
                (v, s), diagonal = sources[0], self.maps[node].diagonal[level.channels]
                found[node] = _mix(diagonal, v, s, known[node], with_slope)
            else:
                found[node] = combine(node, sources, constant)
        return found

    def _in_order(self, constant: Tensor) -> Tensor:
        """A constant (C·K, H, W) or (D,) with its entries in the order of the levels, (N, K)."""
        c, h, w = self.schedule.shape
        flat = constant.reshape(-1, 1, 1) if (h, w) == (1, 1) else constant
        flat = flat.reshape(*(1,) * (3 - flat.dim()), *flat.shape)  # as (W,) or (H, W) broadcast
        copies = max(flat.shape[-3] // c, 1)
        full = flat.expand(*flat.shape[:-3], c * copies, h, w).reshape(c, copies, h * w)
        return full.transpose(1, 2).reshape(-1, copies)[self.order]

    def _level_constants(self, level: Level) -> dict[Expression, Tensor]:
        """The constants at the entries of a level, (A, K, n·B)."""
        count, places = level.places.shape
        found = {}
        for node, rows in self.constants.items():
            at = rows[level.span].reshape(count, places, -1).transpose(1, 2)
            found[node] = at.repeat_interleave(self.batch, dim=2)
        return found

    def _back(self, value: Tensor) -> Tensor:
        """Rows in the order of the levels, back to (B, D)."""
        c, h, w = self.schedule.shape
        whole = value.new_empty(c * h * w, self.batch)
        whole[self.order[self.valid]] = value[self.valid]
        return whole.T


def _mix(diagonal: Tensor, v: Tensor, s: Tensor | None, known: Tensor, with_slope: bool) -> Dual:
    """A linear map on one level: the known part, and copies of the same coordinate mixed."""
    if not with_slope:
        return torch.baddbmm(known, diagonal, v), None
    if s is None:
        return torch.baddbmm(known, diagonal, v), diagonal.sum(2, keepdim=True)
    return torch.baddbmm(known, diagonal, v), diagonal @ s.expand_as(v)


def _structure(
    root: Expression, system: System, shape: tuple[int, ...]
) -> tuple[tuple[int, int, int], int]:
    """The shape (C, H, W) of the level schedule and its radius; refuses what has none."""
    maps = [node.linear for node in root.nodes() if node.linear is not None]
    kinds = {type(linear) for linear in maps}
    if not kinds <= {Convolution, Dense} or len(kinds) > 1:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise StructureError(
            f"the wavefront follows masked convolutions or masked dense layers, one kind in a "
            f"function; {system.name} has {found}. Use FixedPoint or Bisection."
        )
    if system.ordering.name not in MASKS:
        raise StructureError(
            f"the wavefront has no level schedule for the {system.ordering} of {system.name}. "
            "Use FixedPoint or Bisection."
        )
    if len(shape) == 1:
        return (shape[0], 1, 1), 0
    if len(shape) != 3 or kinds == {Dense}:
        raise StructureError(
            f"the wavefront takes images (C, H, W) or vectors (D,); {system.name} has {shape}"
        )
    radius = max((linear.weight.shape[-1] // 2 for linear in maps), default=0)
    return (shape[0], shape[1], shape[2]), radius
