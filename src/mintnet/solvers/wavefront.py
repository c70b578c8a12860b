"""The wavefront inverse: each entry is computed once, level by level."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mintnet.calculus.expression import Expression, Operation
from mintnet.calculus.linear import Convolution, Dense
from mintnet.calculus.masks import MASKS
from mintnet.calculus.value import Value
from mintnet.solvers.base import Solver, StructureError, System
from mintnet.solvers.levels import walk_levels
from mintnet.solvers.schedule import LevelCache, schedule
from mintnet.solvers.solution import Solution, checked, relative_residual
from mintnet.solvers.verified import TOLERANCES

MAX_STEPS = 200
# Steps after which every other one cuts the bracket: Newton's method comes down from eˣ with a step
# of 1 at a time, and each of them more than halves the residual.
PATIENCE = 30
OTHERS = "Use FixedPoint or Bisection."

# (x, columns) ↦ (f(x), f'(x)), for all equations or for some columns of them
Equations = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Wavefront(Solver):
    """Walk the levels of the ordering; on each, solve one monotone equation for each entry.

    All that an entry depends on lies on earlier levels, itself aside. With the activations of
    earlier levels kept, each masked convolution splits into a known part and the weights
    between copies of the entry's own coordinate, and what is left is an equation in one
    unknown, solved by a bracketed Newton method. The inverse costs about one forward pass plus
    these scalar solves, has no step size and converges from anywhere.

    With networks of strictly earlier entries (a coupling has two levels) the equations of a level
    are solved by evaluations of the whole function.
    """

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        if system.expression is None:
            raise StructureError(f"{system.name} has no expression; use FixedPoint or Bisection")
        root, levels, evaluations = system.expression(), system.levels(z), 2
        if levels is not None:
            value, steps = walk_levels(levels, z, system.context)
        elif any(node.operation is Operation.CONDITION for node in root.nodes()):
            groups = _network_levels(system, root, z)
            value, evaluations = solve_in_turn(system, z, groups, scale)
            steps = len(groups)
        else:
            value, steps = _walk(system, root, z, scale)
        residual = relative_residual(system(value)[0] - z, scale)
        return checked(system.name, value, residual, scale, TOLERANCES[z.dtype], steps, evaluations)


def _walk(system: System, root: Expression, z: Tensor, scale: Tensor) -> tuple[Tensor, int]:
    """x with f(x) = z for masked linear maps, and the most Newton steps that a level took."""
    shape, radius = _structure(root, system, tuple(z.shape[1:]))
    plan = schedule(shape, radius, system.ordering.upper, system.ordering.name)
    nodes, batch, steps = root.nodes(), len(z), 0
    linear = (node for node in nodes if node.operation is Operation.LINEAR)
    caches = {node: LevelCache(node.part, plan, z) for node in linear}
    scaled = (node for node in nodes if isinstance(node.part, Tensor) and node.part.numel() > 1)
    constants = {node: _by_entry(node.part, shape) for node in scaled}
    least, sign = (fact.to(z).expand(z.shape[1:]).reshape(-1, 1) for fact in system.slope_floor())
    target = z.flatten(1).T * sign  # rows of B samples
    solution = torch.zeros_like(target)
    levels = zip(plan.levels, plan.entries(z.device), strict=True)
    for number, (level, entries) in enumerate(levels):
        count, places = level.places.shape
        own = (count, 1, places * batch)
        given = {node: cache.known_part(number) for node, cache in caches.items()}
        for node, rows in constants.items():
            given[node] = rows[entries].transpose(1, 2).repeat_interleave(batch, dim=2)
        diagonals = {node: cache.diagonal[level.channels] for node, cache in caches.items()}
        facts = target, least, sign
        y, floor, up = (fact[entries].expand(-1, -1, batch).reshape(own) for fact in facts)
        unit = scale.repeat(places).expand(own)

        def evaluate(
            x: Tensor,
            columns: Tensor | None,
            given: dict[Expression, Tensor] = given,
            diagonals: Mapping[Expression, Tensor] = diagonals,
            up: Tensor = up,
        ) -> tuple[Tensor, Tensor]:
            """± f and its slope, made to increase."""
            if columns is not None:
                given = {node: part[..., columns] for node, part in given.items()}
                up = up[..., columns]
            found = _evaluate(nodes, x, given, diagonals)[root]
            return found.data * up, found.slope * up

        x, taken = solve_monotone(evaluate, y, torch.zeros_like(y), floor, unit)
        steps = max(steps, taken)
        solution[entries] = x.view(*entries.shape, batch)
        found = _evaluate(nodes, x, given, diagonals)
        for node, cache in caches.items():
            cache.keep(found[node.sources[0]].data, number)
    return solution.T.reshape(z.shape), steps


def _network_levels(system: System, root: Expression, z: Tensor) -> list[Tensor]:
    """The entries of each level of the networks of strictly earlier entries, (k,)."""
    networks = [node.part for node in root.nodes() if node.operation is Operation.CONDITION]
    first, *others = (network.levels(tuple(z.shape[1:])) for network in networks)
    linear = any(node.operation is Operation.LINEAR for node in root.nodes())
    if linear or not all(torch.equal(first, levels) for levels in others):
        what = "masked linear maps and networks of earlier entries, or networks of different levels"
        raise StructureError(f"{system.name} has both {what}: there is no level schedule. {OTHERS}")
    levels = first.flatten().to(z.device)
    return [(levels == level).nonzero().flatten() for level in range(1 + int(levels.max()))]


def solve_in_turn(
    system: System, z: Tensor, groups: Iterable[Tensor], scale: Tensor, newton: bool = True
) -> tuple[Tensor, int]:
    """x with f(x) = z, one group of entries (k,) after the other, and the evaluations of f.

    Each depends on earlier groups and itself. Without ``newton`` brackets are halved to the last.
    """
    guess, target, evaluations = system.first(z).flatten(1), z.flatten(1), 0
    x = torch.zeros_like(guess)  # what is not solved yet must not overflow anywhere
    for entries in groups:
        slope = system(x.reshape(z.shape))[1].flatten(1)[:, entries].T
        sign = torch.where(slope < 0, -1.0, 1.0).to(z)

        def evaluate(
            value: Tensor, columns: Tensor | None, entries: Tensor = entries, sign: Tensor = sign
        ) -> tuple[Tensor, Tensor]:
            """± f and its slope at these entries, (k, samples), made to increase."""
            chosen = slice(None) if columns is None else columns
            at = x[chosen].index_copy(1, entries, value.T)
            pair = system.rows(chosen)(at.reshape(-1, *z.shape[1:]))
            y, slope = (part.flatten(1)[:, entries].T * sign[:, chosen] for part in pair)
            return y, slope if newton else torch.full_like(slope, float("nan"))

        goal, start = target[:, entries].T * sign, guess[:, entries].T
        unit = scale.expand_as(goal) * newton
        value, taken = solve_monotone(evaluate, goal, start, torch.zeros_like(goal), unit)
        x[:, entries] = value.T
        evaluations += taken + 1
    return x.reshape(z.shape), evaluations


def _evaluate(
    nodes: list[Expression],
    x: Tensor,
    given: dict[Expression, Tensor],
    diagonals: Mapping[Expression, Tensor],
) -> dict[Expression, Value]:
    """Value and slope of every node at x; ``given``: known parts of linear maps, and constants."""
    found: dict[Expression, Value] = {}
    for node in nodes:
        part = given.get(node, node.part)
        v, *others = [found[source] for source in node.sources] or [Value(x, torch.ones_like(x))]
        match node.operation:
            case Operation.INPUT:
                pass
            case Operation.LINEAR:
                own = diagonals[node]
                v = Value(torch.baddbmm(part, own, v.data), own @ v.slope)
            case Operation.SCALE:
                factor = torch.as_tensor(part, dtype=x.dtype, device=x.device)
                v = Value(v.data * factor, v.slope * factor)
            case Operation.SHIFT:
                v = Value(v.data + torch.as_tensor(part, dtype=x.dtype, device=x.device), v.slope)
            case Operation.ELEMENTWISE | Operation.ADD | Operation.MULTIPLY:
                v = getattr(v, node.operation.value)(*others or (part,))
            case _:
                where = f"{part} alone, not inside of another function"
                raise StructureError(f"the wavefront follows {where}. {OTHERS}")
        found[node] = v
    return found


def _by_entry(constant: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """A constant (C·K, H, W) or (D,) with a row for each entry, (C·H·W, K)."""
    c, h, w = shape
    flat = constant.reshape(-1, 1, 1) if (h, w) == (1, 1) else constant
    flat = flat.reshape(*(1,) * (3 - flat.dim()), *flat.shape)  # as (W,) or (H, W) broadcast
    copies = max(flat.shape[-3] // c, 1)
    full = flat.expand(*flat.shape[:-3], c * copies, h, w).reshape(c, copies, h * w)
    return full.transpose(1, 2).reshape(-1, copies)


def _structure(
    root: Expression, system: System, shape: tuple[int, ...]
) -> tuple[tuple[int, int, int], int]:
    """The shape (C, H, W) of the level schedule and its radius; refuses what has none."""
    maps = [node.part for node in root.nodes() if node.operation is Operation.LINEAR]
    kinds = {type(linear) for linear in maps}
    if not kinds <= {Convolution, Dense} or len(kinds) > 1:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        taken = "masked convolutions or masked dense layers, one kind in a function"
        raise StructureError(f"the wavefront follows {taken}; {system.name} has {found}. {OTHERS}")
    if system.ordering.name not in MASKS:
        what = f"the {system.ordering} of {system.name}"
        raise StructureError(f"the wavefront has no level schedule for {what}. {OTHERS}")
    if len(shape) == 1:
        return (shape[0], 1, 1), 0
    if len(shape) != 3 or kinds == {Dense}:
        raise StructureError(f"the wavefront takes (C, H, W) or (D,); {system.name} has {shape}")
    radius = max((linear.weight.shape[-1] // 2 for linear in maps), default=0)
    return (shape[0], shape[1], shape[2]), radius


def solve_monotone(
    evaluate: Equations, target: Tensor, start: Tensor, least_slope: Tensor, scale: Tensor
) -> tuple[Tensor, int]:
    """x with f(x) = target, entry by entry, for increasing f.

    A Newton step is taken where it stays inside the bracket and the last one halved the residual;
    otherwise the bracket is halved (plain Newton can crawl between the two sides of a kink), or
    doubled outwards while it is open. After `PATIENCE` steps every other one cuts it in any case,
    and a very wide one is doubled outwards too. Columns that are solved leave.

    ``least_slope`` is a lower bound of f', or 0: it closes the bracket at the first step.
    Residuals below the rounding error of numbers of the size ``scale`` count as 0.

    Shapes: all (..., columns). Returns x and the number of evaluations.
    """
    eps = torch.finfo(target.dtype).eps
    answer = best = x = start
    columns: Tensor | None = None
    floor, stride = 2 * eps * scale, torch.zeros_like(target)
    high = last = best_size = torch.full_like(target, float("inf"))
    low = -high
    for step in range(1, MAX_STEPS + 1):
        y, slope = evaluate(x, columns)
        excess = y - target
        size = excess.abs()
        better = size < best_size
        best, best_size = torch.where(better, x, best), torch.where(better, size, best_size)
        newton = excess / slope
        # Done: at the rounding floor, or a step below the last place of x.
        done = (size <= floor) | ((newton.abs() <= eps * x.abs()) & slope.isfinite())
        above = excess > 0
        high, low = torch.where(above, x, high), torch.where(above, low, x)
        if step == 1:  # with f' ≥ c > 0 the root lies within |excess| / c of x
            other = x - 1.0001 * excess / least_slope
            known = other.isfinite()
            low = torch.where(above & known, other, low)
            high = torch.where(~above & known, other, high)
        else:
            done |= (high - low) <= 2 * eps * x.abs()
        busy = ~done.flatten(0, -2).all(0)
        count = int(busy.sum())
        if count == 0:
            break
        reach = newton.abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
        stride = torch.maximum(2 * stride, torch.minimum(reach, 1 + x.abs()))
        late, candidate = step >= PATIENCE, x - newton
        trusted = (size <= 0.5 * last) & (candidate > low) & (candidate < high)
        middle = low + (high - low) / 2  # not finite while the bracket is open
        near = (middle - x).abs() <= stride if late else True
        outwards = x - torch.where(above, stride, -stride)
        cut = torch.where(middle.isfinite() & near, middle, outwards)
        if not late or step % 2 == 0:
            cut = torch.where(trusted, candidate, cut)
        x, last = torch.where(done, x, cut), size
        if count < 0.7 * busy.numel():
            answer = best if columns is None else answer.index_copy(-1, columns, best)
            left = busy.nonzero().flatten()
            columns = left if columns is None else columns[left]
            old = x, target, floor, low, high, last, best, best_size, stride
            x, target, floor, low, high, last, best, best_size, stride = (v[..., left] for v in old)
    return best if columns is None else answer.index_copy(-1, columns, best), step
