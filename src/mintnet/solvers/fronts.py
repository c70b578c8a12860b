"""The wavefront of functions with conditioners: networks of strictly earlier entries."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet.calculus.expression import Expression, Operation
from mintnet.solvers.base import StructureError, System
from mintnet.solvers.dual import Dual, combine
from mintnet.solvers.scalar import solve_monotone


class ConditionedWalk:
    """One pass over the levels of a conditioner for one batch.

    The networks are evaluated once for each level, on what is known by then; with their outputs
    fixed, one equation in one unknown is left for each entry of the level. A coupling has two
    levels, a layer that sees earlier rows has one for each row.
    """

    def __init__(self, system: System, root: Expression, z: Tensor) -> None:
        self.system, self.root, self.nodes = system, root, root.nodes()
        if any(node.linear is not None for node in self.nodes):
            raise StructureError(
                f"{system.name} has both masked linear maps and networks of earlier entries, for "
                "which there is no level schedule. Use FixedPoint or Bisection."
            )
        shape = tuple(z.shape[1:])
        conditioners = [node.conditioner for node in self.nodes if node.conditioner is not None]
        found = [conditioner.levels(shape) for conditioner in conditioners]
        if any(not torch.equal(found[0], levels) for levels in found[1:]):
            raise StructureError(
                f"the networks of {system.name} see earlier entries by different levels. Use "
                "FixedPoint or Bisection."
            )
        self.levels = found[0].flatten().to(z.device)

    @property
    def depth(self) -> int:
        """How many levels there are."""
        return 1 + int(self.levels.max())

    def run(self, z: Tensor, scale: Tensor) -> tuple[Tensor, int]:
        """x with f(x) = z, and the most Newton steps that a level took."""
        batch, shape = len(z), z.shape
        least, sign = (fact.to(z).expand(shape[1:]).flatten() for fact in self.system.slope_floor())
        x, target, steps = torch.zeros_like(z).flatten(1), z.flatten(1) * sign, 0
        for level in range(self.depth):
            entries = (self.levels == level).nonzero().flatten()
            found = self._everything(x.reshape(shape))
            known = {
                node: found[node][0].flatten(1)[:, entries].reshape(1, -1)
                if node.operation is Operation.CONDITION
                else self._constant(node, entries, shape)
                for node in self.nodes
            }
            direction = sign[entries].repeat(batch)[None]

            def evaluate(
                v: Tensor,
                columns: Tensor | None,
                known: dict[Expression, Tensor] = known,
                direction: Tensor = direction,
            ) -> tuple[Tensor, Tensor]:
                chosen = slice(None) if columns is None else columns
                y, slope = self._entries(v, known, chosen)
                slope = torch.ones_like(y) if slope is None else slope
                return y * direction[:, chosen], slope * direction[:, chosen]

            value, taken = solve_monotone(
                evaluate,
                target[:, entries].reshape(1, -1),
                x[:, entries].reshape(1, -1),
                least[entries].repeat(batch)[None],
                scale.repeat_interleave(len(entries))[None],
            )
            x[:, entries] = value.reshape(batch, -1)
            steps = max(steps, taken)
        return x.reshape(shape), steps

    def _everything(self, x: Tensor) -> dict[Expression, Dual]:
        """Every node for whole samples."""
        found: dict[Expression, Dual] = {}
        outputs: dict[tuple[int, Expression], tuple[Tensor, ...]] = {}
        for node in self.nodes:
            if node.operation is Operation.INPUT:
                found[node] = (x, None)
            elif node.conditioner is not None:
                key = (id(node.conditioner), node.sources[0])
                if key not in outputs:
                    outputs[key] = node.conditioner(found[node.sources[0]][0])
                found[node] = (outputs[key][node.output], torch.zeros_like(x))
            else:
                sources = [found[source] for source in node.sources]
                found[node] = combine(node, sources, node.constant)
        return found

    def _entries(self, v: Tensor, known: dict[Expression, Tensor], chosen: slice | Tensor) -> Dual:
        """The root for the entries of one level, with the outputs of the networks given."""
        found: dict[Expression, Dual] = {}
        for node in self.nodes:
            given = known[node][:, chosen]
            if node.operation is Operation.INPUT:
                found[node] = (v, None)
            elif node.operation is Operation.CONDITION:
                found[node] = (given, torch.zeros_like(given))
            else:
                found[node] = combine(node, [found[source] for source in node.sources], given)
        return found[self.root]

    def _constant(self, node: Expression, entries: Tensor, shape: torch.Size) -> Tensor:
        constant = torch.as_tensor(node.constant, device=entries.device)
        return constant.expand(shape[1:]).flatten()[entries].repeat(shape[0])[None]
