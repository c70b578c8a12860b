"""A function of the calculus written down: for solvers that walk its structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from mintnet.calculus.ordering import Ordering, common
from mintnet.calculus.quantity import Quantity

if TYPE_CHECKING:
    from mintnet.calculus.conditioner import Conditioner
    from mintnet.calculus.elementwise import Elementwise
    from mintnet.calculus.linear import LinearMap
    from mintnet.calculus.monotone import MonotoneMap


Q = TypeVar("Q", bound=Quantity)


class Operation(Enum):
    """What one node of an expression does with its sources."""

    INPUT = "input"
    LINEAR = "linear"
    ELEMENTWISE = "elementwise"
    CONDITION = "condition"
    MONOTONE = "monotone"
    ADD = "add"
    MULTIPLY = "multiply"
    SCALE = "scale"
    SHIFT = "shift"


RULES = {
    Operation.LINEAR: ("through", "linear"),
    Operation.ELEMENTWISE: ("apply", "function"),
    Operation.MONOTONE: ("through_monotone", "monotone"),
    Operation.SCALE: ("scale", "constant"),
    Operation.SHIFT: ("shift", "constant"),
}
"""What to call on one source, and with which part of the node."""


@dataclass(frozen=True, eq=False)
class Expression(Quantity):
    """One node of the expression graph of a function.

    Examples:
        >>> from mintnet.calculus import Tanh
        >>> y = trace(lambda x: 2.0 * x + Tanh()(x))
        >>> [node.operation.value for node in y.nodes()]
        ['input', 'scale', 'elementwise', 'add']
    """

    operation: Operation
    sources: tuple[Expression, ...] = ()
    linear: LinearMap | None = None
    function: Elementwise | None = None
    conditioner: Conditioner | None = None
    monotone: MonotoneMap | None = None
    output: int = 0
    constant: Tensor | float = 0.0
    ordering: Ordering | None = None

    def through(self, linear: LinearMap) -> Expression:
        return self._then(Operation.LINEAR, linear.ordering, linear=linear)

    def apply(self, function: Elementwise) -> Expression:
        return self._then(Operation.ELEMENTWISE, None, function=function)

    def conditioned(self, conditioner: Conditioner) -> tuple[Expression, ...]:
        operation, ordering = Operation.CONDITION, conditioner.ordering
        return tuple(
            self._then(operation, ordering, conditioner=conditioner, output=output)
            for output in range(conditioner.outputs)
        )

    def through_monotone(self, function: MonotoneMap) -> Expression:
        return self._then(Operation.MONOTONE, function.ordering, monotone=function)

    def add(self, other: Expression) -> Expression:
        return self._then(Operation.ADD, other.ordering, other)

    def multiply(self, other: Expression) -> Expression:
        return self._then(Operation.MULTIPLY, other.ordering, other)

    def scale(self, factor: Tensor | float) -> Expression:
        return self._then(Operation.SCALE, None, constant=factor)

    def shift(self, offset: Tensor | float) -> Expression:
        return self._then(Operation.SHIFT, None, constant=offset)

    def _then(
        self, operation: Operation, ordering: Ordering | None, *others: Expression, **part: Any
    ) -> Expression:
        ordering = common(self.ordering, ordering)
        return Expression(operation, (self, *others), ordering=ordering, **part)

    def nodes(self) -> list[Expression]:
        """All nodes that this one needs, itself last; sources come before what uses them."""
        found: dict[Expression, None] = {}
        waiting = [self]
        while waiting:
            node = waiting[-1]
            missing = [source for source in node.sources if source not in found]
            waiting.extend(reversed(missing))
            if not missing:
                found[waiting.pop()] = None
        return list(found)

    def on(self, x: Q) -> Q:
        """The function at another kind of quantity: x stands for the input."""
        found: dict[Expression, Any] = {}
        networks: dict[tuple[Expression, int], tuple[Any, ...]] = {}
        for node in self.nodes():
            v, *rest = [found[source] for source in node.sources] or [x]
            if node.operation in RULES:
                rule, part = RULES[node.operation]
                v = getattr(v, rule)(getattr(node, part))
            elif node.conditioner is not None:
                key = node.sources[0], id(node.conditioner)
                if key not in networks:
                    networks[key] = v.conditioned(node.conditioner)
                v = networks[key][node.output]
            elif rest:
                v = v.add(*rest) if node.operation is Operation.ADD else v.multiply(*rest)
            found[node] = v
        return v  # type: ignore[no-any-return]


def trace(function: Callable[[Any], Any]) -> Expression:
    """The expression of a function, by running it once on a symbol."""
    found = function(Expression(Operation.INPUT))
    if not isinstance(found, Expression):
        raise ValueError(
            "a function of the calculus gives back a quantity made from its argument; got "
            f"{type(found).__name__}"
        )
    return found
