"""A function of the calculus written down: for solvers that walk its structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor

from mintnet.calculus.conditioner import Conditioner, MonotoneMap
from mintnet.calculus.elementwise import Elementwise
from mintnet.calculus.linear import LinearMap
from mintnet.calculus.ordering import Ordering, common
from mintnet.calculus.quantity import Q, Quantity


class Operation(Enum):
    """What a node does with its sources: the name of the method of `Quantity` that does it."""

    INPUT = "input"
    LINEAR = "through"
    ELEMENTWISE = "apply"
    CONDITION = "conditioned"
    MONOTONE = "through_monotone"
    ADD = "add"
    MULTIPLY = "multiply"
    SCALE = "scale"
    SHIFT = "shift"


@dataclass(frozen=True, eq=False)
class Expression(Quantity):
    """One node of the expression graph of a function.

    ``part`` is what its operation takes beside the sources: a linear map, a function, a network
    (of which the node is one ``output``) or a constant.

    Examples:
        >>> from mintnet.calculus import Tanh
        >>> y = trace(lambda x: 2.0 * x + Tanh()(x))
        >>> [node.operation.value for node in y.nodes()]
        ['input', 'scale', 'apply', 'add']
    """

    operation: Operation
    sources: tuple[Expression, ...] = ()
    ordering: Ordering | None = None
    part: Any = None
    output: int = 0

    def through(self, linear: LinearMap) -> Expression:
        return self._then(Operation.LINEAR, linear)

    def apply(self, function: Elementwise) -> Expression:
        return self._then(Operation.ELEMENTWISE, function)

    def conditioned(self, conditioner: Conditioner) -> tuple[Expression, ...]:
        outputs = range(conditioner.outputs)
        return tuple(self._then(Operation.CONDITION, conditioner, output) for output in outputs)

    def through_monotone(self, function: MonotoneMap) -> Expression:
        return self._then(Operation.MONOTONE, function)

    def add(self, other: Expression) -> Expression:
        return Expression(Operation.ADD, (self, other), common(self.ordering, other.ordering))

    def multiply(self, other: Expression) -> Expression:
        return Expression(Operation.MULTIPLY, (self, other), common(self.ordering, other.ordering))

    def scale(self, factor: Tensor | float) -> Expression:
        return self._then(Operation.SCALE, factor)

    def shift(self, offset: Tensor | float) -> Expression:
        return self._then(Operation.SHIFT, offset)

    def _then(self, operation: Operation, part: Any, output: int = 0) -> Expression:
        ordering = common(self.ordering, getattr(part, "ordering", None))
        return Expression(operation, (self,), ordering, part, output)

    def nodes(self) -> list[Expression]:
        """All nodes that this one needs, itself last; sources come before what uses them."""
        found: dict[Expression, None] = {}
        waiting = [self]
        while waiting:
            missing = [source for source in waiting[-1].sources if source not in found]
            waiting.extend(reversed(missing))
            if not missing:
                found[waiting.pop()] = None
        return list(found)

    def on(self, x: Q) -> Q:
        """The function at another kind of quantity: x stands for the input."""
        found: dict[Expression, Any] = {}
        networks: dict[tuple[Expression, int], tuple[Any, ...]] = {}
        for node in self.nodes():
            v, *others = [found[source] for source in node.sources] or [x]
            if node.operation is Operation.CONDITION:  # run once for all its outputs
                key = node.sources[0], id(node.part)
                if key not in networks:
                    networks[key] = v.conditioned(node.part)
                v = networks[key][node.output]
            elif node.operation is not Operation.INPUT:
                v = getattr(v, node.operation.value)(*others or (node.part,))
            found[node] = v
        return v  # type: ignore[no-any-return]


def trace(function: Callable[[Any], Any]) -> Expression:
    """The expression of a function, by running it once on a symbol."""
    found = function(Expression(Operation.INPUT))
    if not isinstance(found, Expression):
        got = type(found).__name__
        raise ValueError(f"a function of the calculus gives back a quantity made from x; got {got}")
    return found
