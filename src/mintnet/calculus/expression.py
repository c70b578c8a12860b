"""A function of the calculus written down: for solvers that walk its structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from torch import Tensor

from mintnet.calculus.ordering import Ordering, common
from mintnet.calculus.quantity import Quantity

if TYPE_CHECKING:
    from mintnet.calculus.conditioner import Conditioner
    from mintnet.calculus.elementwise import Elementwise
    from mintnet.calculus.linear import LinearMap
    from mintnet.calculus.monotone import MonotoneMap


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
        ordering = common(self.ordering, linear.ordering)
        return Expression(Operation.LINEAR, (self,), linear=linear, ordering=ordering)

    def apply(self, function: Elementwise) -> Expression:
        return Expression(Operation.ELEMENTWISE, (self,), function=function, ordering=self.ordering)

    def conditioned(self, conditioner: Conditioner) -> tuple[Expression, ...]:
        ordering = common(self.ordering, conditioner.ordering)
        return tuple(
            Expression(
                Operation.CONDITION,
                (self,),
                conditioner=conditioner,
                output=output,
                ordering=ordering,
            )
            for output in range(conditioner.outputs)
        )

    def through_monotone(self, function: MonotoneMap) -> Expression:
        ordering = common(self.ordering, function.ordering)
        return Expression(Operation.MONOTONE, (self,), monotone=function, ordering=ordering)

    def add(self, other: Expression) -> Expression:
        ordering = common(self.ordering, other.ordering)
        return Expression(Operation.ADD, (self, other), ordering=ordering)

    def multiply(self, other: Expression) -> Expression:
        ordering = common(self.ordering, other.ordering)
        return Expression(Operation.MULTIPLY, (self, other), ordering=ordering)

    def scale(self, factor: Tensor | float) -> Expression:
        return Expression(Operation.SCALE, (self,), constant=factor, ordering=self.ordering)

    def shift(self, offset: Tensor | float) -> Expression:
        return Expression(Operation.SHIFT, (self,), constant=offset, ordering=self.ordering)

    def nodes(self) -> list[Expression]:
        """All nodes that this one needs, itself last; sources come before what uses them."""
        found: dict[int, Expression] = {}

        def visit(node: Expression) -> None:
            if id(node) not in found:
                for source in node.sources:
                    visit(source)
                found[id(node)] = node

        visit(self)
        return list(found.values())


def trace(function: Callable[[Expression], Expression]) -> Expression:
    """The expression of a function, by running it once on a symbol."""
    return function(Expression(Operation.INPUT))
