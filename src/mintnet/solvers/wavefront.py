"""The wavefront inverse: each entry is computed once, level by level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mintnet.calculus.expression import Expression, Operation
from mintnet.calculus.linear import Convolution, Dense
from mintnet.solvers.base import TOLERANCES, Solver, System, fill_failures
from mintnet.solvers.scalar import solve_monotone
from mintnet.solvers.schedule import Level, levels
from mintnet.solvers.solution import Solution, Status, relative_residual


class StructureError(ValueError):
    """A function whose structure the wavefront cannot follow."""


@dataclass(frozen=True)
class Wavefront(Solver):
    """Walk the levels of the ordering; on each, solve one monotone equation for each entry.

    All that an entry depends on lies on earlier levels, itself aside. With the activations of
    earlier levels kept, each masked convolution splits into a known part and the weights
    between copies of the entry's own coordinate, and what is left is an equation in one
    unknown, solved by a bracketed Newton method. The inverse costs about one forward pass plus
    these scalar solves, has no step size and converges from anywhere.
    """

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        return self.solve_from(system, z, scale, None)

    def solve_from(self, system: System, z: Tensor, scale: Tensor, x: Tensor | None) -> Solution:
        """Solve with first guesses for the scalar equations, which only save steps."""
        if system.expression is None:
            raise StructureError(
                f"{system.name} gives no expression to walk; use FixedPoint or Bisection"
            )
        walk = _Walk(system.expression(), system, z)
        value, steps = walk.run(z, scale, x)
        residual = relative_residual(system.evaluate(value)[0], z, scale)
        left = torch.where(residual.isfinite(), int(Status.OUT_OF_STEPS), int(Status.DIVERGED))
        status = torch.where(residual <= TOLERANCES[z.dtype], int(Status.CONVERGED), left)
        return Solution(
            name=system.name,
            value=fill_failures(value, status),
            status=status,
            residual=residual,
            steps=torch.full_like(status, steps),
            evaluations=torch.full_like(status, 2),
        )


class _Walk:
    """One pass over the levels for one batch.

    Arrays of a level are laid out (A, K, n·B): active channels, copies, places times samples.
    Activations that enter a linear map are kept as rows of B samples, one for each place of
    the padded image and each copy.
    """

    def __init__(self, root: Expression, system: System, z: Tensor) -> None:
        self.root, self.nodes, self.batch = root, root.nodes(), len(z)
        self.shape, self.radius = _structure(self.nodes, system, tuple(z.shape[1:]))
        self.levels = levels(self.shape, self.radius, system.ordering.upper)
        self.system = system
        self.upper = system.ordering.upper
        self.linear = [node for node in self.nodes if node.operation is Operation.LINEAR]
        c, h, w = self.shape
        self.padded = (h + 2 * self.radius, w + 2 * self.radius)
        self.caches: dict[int, Tensor] = {}
        for node in self.linear:
            source, copies = node.sources[0], _copies(node)[1]
            rows = c * self.padded[0] * self.padded[1] * copies
            self.caches.setdefault(id(source), z.new_zeros(rows, self.batch))

    def run(self, z: Tensor, scale: Tensor, start: Tensor | None) -> tuple[Tensor, int]:
        flat = z.reshape(self.batch, -1).T.contiguous()  # (D, B)
        guess = None if start is None else start.reshape(self.batch, -1).T.contiguous()
        value = torch.empty_like(flat)
        least, sign = self._slope_facts(z)
        steps = 0
        for number, level in enumerate(self.levels):
            own = self._own_places(number, level, z.device)
            known = {id(node): self._known_part(node, number, level) for node in self.linear}
            constants = {
                id(node): self._constant(node, own, level, z)
                for node in self.nodes
                if isinstance(node.constant, Tensor)
            }
            direction = _rows(sign, own)

            def evaluate(
                x: Tensor,
                known: dict[int, Tensor] = known,
                constants: dict[int, Any] = constants,
                level: Level = level,
                direction: Tensor | float = direction,
            ) -> tuple[Tensor, Tensor]:
                y, slope = self._evaluate(x, known, constants, level)[id(self.root)]
                return y * direction, slope * direction

            target = _rows(flat, own) * direction
            size = scale.repeat(own.shape[1])
            first = torch.zeros_like(target) if guess is None else _rows(guess, own)
            x, taken = solve_monotone(evaluate, target, first, _rows(least, own), size)
            steps = max(steps, taken)
            value[own[level.valid]] = _unrows(x, own)[level.valid]
            self._keep(self._evaluate(x, known, constants, level), own, number, level)
        return value.T.reshape(z.shape), steps

    def _evaluate(
        self, x: Tensor, known: dict[int, Tensor], constants: dict[int, Any], level: Level
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """Value and slope of every node on one level as functions of the unknowns x alone."""
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for node in self.nodes:
            sources = [found[id(source)] for source in node.sources]
            found[id(node)] = self._node(node, x, sources, known, constants, level)
        return found

    def _node(
        self,
        node: Expression,
        x: Tensor,
        sources: list[tuple[Tensor, Tensor]],
        known: dict[int, Tensor],
        constants: dict[int, Any],
        level: Level,
    ) -> tuple[Tensor, Tensor]:
        if node.operation is Operation.INPUT:
            return x, torch.ones_like(x)
        (v, s), *others = sources
        constant = constants.get(id(node), node.constant)
        match node.operation:
            case Operation.LINEAR:
                both = self._diagonal(node, level) @ torch.cat((v, s), dim=-1)
                mixed, slope = both.chunk(2, dim=-1)
                return known[id(node)] + mixed, slope
            case Operation.ELEMENTWISE:
                assert node.function is not None
                value, slope = node.function.value_and_slope(v)
                return value, slope * s
            case Operation.ADD:
                return v + others[0][0], s + others[0][1]
            case Operation.MULTIPLY:
                u, r = others[0]
                return v * u, s * u + v * r
            case Operation.SCALE:
                return v * constant, s * constant
            case _:
                return v + constant, s

    def _known_part(self, node: Expression, number: int, level: Level) -> Tensor:
        """The bias and what earlier levels contribute to a linear map, (A, K_out, n·B).

        Entries of this level and later ones are still 0 in the cache, so that the whole kernel
        can be applied.
        """
        linear, (copies_out, copies_in) = node.linear, _copies(node)
        assert linear is not None
        taps = _taps(linear)
        first, last = int(level.channels[0]), int(level.channels[-1])
        c, h, w = self.shape
        seen = slice(first, c) if self.upper else slice(0, last + 1)
        rows = _patch_rows(self.shape, self.radius, self.upper, number, taps, copies_in)
        cache = self.caches[id(node.sources[0])]
        patches = cache.index_select(0, rows.to(cache.device).flatten())
        patches = patches.reshape(len(level.channels), -1, level.row.shape[1] * self.batch)
        weight = self._slab(node)[first : last + 1, :, seen].flatten(2)
        known = weight @ patches
        if linear.bias is not None:
            known = known + linear.bias.reshape(c, copies_out, 1)[first : last + 1]
        return known

    def _slab(self, node: Expression) -> Tensor:
        """The weight as (C_out, K_out, C_in, R·R·K_in), made once for each walk."""
        slabs: dict[int, Tensor] = self.__dict__.setdefault("slabs", {})
        if id(node) not in slabs:
            linear, (out, into) = node.linear, _copies(node)
            assert linear is not None
            c = self.shape[0]
            weight = linear.weight.reshape(c, out, c, into, -1)
            slabs[id(node)] = weight.transpose(3, 4).reshape(c, out, c, -1).contiguous()
        return slabs[id(node)]

    def _diagonal(self, node: Expression, level: Level) -> Tensor:
        """The weights between copies of the same coordinate, (A, K_out, K_in)."""
        diagonals: dict[int, Tensor] = self.__dict__.setdefault("diagonals", {})
        if id(node) not in diagonals:
            assert node.linear is not None
            diagonals[id(node)] = node.linear.diagonal().contiguous()
        return diagonals[id(node)][int(level.channels[0]) : int(level.channels[-1]) + 1]

    def _own_places(self, number: int, level: Level, device: torch.device) -> Tensor:
        """(A, n) the entries' places among the D coordinates."""
        _, h, w = self.shape
        own = (level.channels[:, None] * h + level.row) * w + level.column
        return own.to(device)

    def _constant(self, node: Expression, own: Tensor, level: Level, z: Tensor) -> Tensor | float:
        """A constant of the expression at the entries of this level, broadcasting with (A, K, n·B)."""
        constant = node.constant
        assert isinstance(constant, Tensor)
        if constant.numel() == 1:
            return constant.reshape(())
        c, h, w = self.shape
        copies = constant.shape[-3] // c if constant.dim() >= 3 else 1
        if constant.dim() >= 3 and constant.shape[-3] == 1:
            copies = 1
        full = (
            constant.expand(c * copies, h, w)
            if z.dim() == 4
            else constant.expand(c).reshape(c, 1, 1)
        )
        flat = full.reshape(c, copies, h * w)
        place = level.row.to(own.device) * w + level.column.to(own.device)
        channels = level.channels.to(own.device)
        picked = flat[channels].gather(2, place[:, None, :].expand(-1, copies, -1))
        return picked.repeat_interleave(self.batch, dim=2)

    def _keep(
        self, found: dict[int, tuple[Tensor, Tensor]], own: Tensor, number: int, level: Level
    ) -> None:
        """Write the activations of this level to where later levels look for them."""
        for key, cache in self.caches.items():
            value = found[key][0]
            copies = value.shape[1]
            height, width = self.padded
            place = (level.channels[:, None] * height + level.row + self.radius) * width
            place = place + level.column + self.radius
            rows = (place[:, None, :] * copies + torch.arange(copies)[None, :, None]).to(own.device)
            keep = level.valid[:, None, :].expand(-1, copies, -1).to(own.device)
            value = value.reshape(*value.shape[:2], -1, self.batch)
            cache[rows[keep]] = value[keep]

    def _slope_facts(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The least |slope| and its sign for each coordinate, (D, 1)."""
        least, sign = self.system.slope_facts()
        return tuple(fact.to(z).reshape(-1, 1).expand(-1, self.batch) for fact in (least, sign))  # type: ignore[return-value]


def _rows(flat: Tensor, own: Tensor) -> Tensor:
    """Rows (D, B) of the entries of a level, as (A, 1, n·B)."""
    return flat[own].reshape(own.shape[0], 1, -1)


def _unrows(x: Tensor, own: Tensor) -> Tensor:
    """The reverse of `_rows`: (A, n, B)."""
    return x.reshape(*own.shape, -1)


def _copies(node: Expression) -> tuple[int, int]:
    """Copies of each channel that come out of a linear map and that go in."""
    assert node.linear is not None
    out, into = node.linear.weight.shape[:2]
    return out // node.linear.groups, into // node.linear.groups


def _taps(linear: Any) -> int:
    """R, the size of the kernel; a dense layer sees everything earlier at the same place."""
    return int(linear.weight.shape[-1]) if isinstance(linear, Convolution) else 1


def _structure(
    nodes: list[Expression], system: System, shape: tuple[int, ...]
) -> tuple[tuple[int, int, int], int]:
    """The shape (C, H, W) of the level schedule and its radius; refuses what has none."""
    maps = [node.linear for node in nodes if node.linear is not None]
    if any(not isinstance(linear, Convolution | Dense) for linear in maps):
        raise StructureError(
            f"{system.name}: the wavefront knows masked convolutions and dense layers"
        )
    dense = {isinstance(linear, Dense) for linear in maps}
    if len(dense) > 1:
        raise StructureError(f"{system.name} mixes dense layers and convolutions in one function")
    if system.ordering.name != "raster":
        raise StructureError(f"{system.name}: no level schedule for the {system.ordering}")
    if dense == {True} or len(shape) == 1:
        return (shape[0], 1, 1), 0
    if len(shape) != 3:
        raise StructureError(f"{system.name}: samples of shape {shape} are not images or vectors")
    radius = max((_taps(linear) // 2 for linear in maps), default=0)
    return (shape[0], shape[1], shape[2]), radius


_PATCHES: dict[Any, Tensor] = {}


def _patch_rows(
    shape: tuple[int, int, int], radius: int, upper: bool, number: int, taps: int, copies: int
) -> Tensor:
    """Rows of the cache that a kernel sees from each entry of a level, (A, C·R·R·K, n)."""
    key = (shape, radius, upper, number, taps, copies)
    if key not in _PATCHES:
        level = levels(shape, radius, upper)[number]
        height, width = shape[1] + 2 * radius, shape[2] + 2 * radius
        first, last = int(level.channels[0]), int(level.channels[-1])
        seen = torch.arange(first, shape[0]) if upper else torch.arange(last + 1)
        offset = torch.arange(taps) - taps // 2 + radius
        row = level.row[:, None, None, None, None, :] + offset[:, None, None, None]
        column = level.column[:, None, None, None, None, :] + offset[:, None, None]
        place = (seen[:, None, None, None, None] * height + row) * width + column
        rows = place * copies + torch.arange(copies)[:, None]
        _PATCHES[key] = rows.flatten(1, 4).to(torch.int32)
    return _PATCHES[key]
