"""Triangular functions as modules, with the rules of Proposition 1 as operators."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from mintnet.calculus.quantity import Arithmetic, Quantity

Q = TypeVar("Q", bound=Quantity)


class Function(nn.Module, Arithmetic):
    r"""A function with a triangular Jacobian: a member of the set F of Proposition 1.

    Write `forward` with the operators of the calculus and with other functions; its slope, its
    log-determinant and its proof of invertibility then come with it. Functions combine as
    values do, and ``g @ f`` is the composition g ∘ f.

    Examples:
        >>> import torch
        >>> from mintnet.calculus import MaskedLinear, Tanh, variable
        >>> f = 2.0 * Identity() + Tanh() @ MaskedLinear(3)
        >>> f(variable(torch.zeros(1, 3))).log_det().shape
        torch.Size([1])
    """

    @abstractmethod
    def forward(self, x: Q) -> Q:
        """The image of a quantity: a value, a range or an expression."""

    def __add__(self, other: Function | Tensor | float) -> Function:
        return Sum(self, other) if isinstance(other, Function) else Shifted(self, other)

    def __mul__(self, other: Function | Tensor | float) -> Function:
        return Product(self, other) if isinstance(other, Function) else Scaled(self, other)

    def __matmul__(self, inner: Function) -> Function:
        return Composition(self, inner)


class Identity(Function):
    """x ↦ x."""

    def forward(self, x: Q) -> Q:
        return x


class _Pair(Function):
    def __init__(self, first: Function, second: Function) -> None:
        super().__init__()
        self.first, self.second = first, second


class Sum(_Pair):
    """The rule of addition: x ↦ f(x) + g(x)."""

    def forward(self, x: Q) -> Q:
        return self.first(x) + self.second(x)  # type: ignore[no-any-return]


class Product(_Pair):
    """The element-wise product: x ↦ f(x) · g(x)."""

    def forward(self, x: Q) -> Q:
        return self.first(x) * self.second(x)  # type: ignore[no-any-return]


class _WithConstant(Function):
    """A function and a constant: a number, or a tensor that moves and saves with the module."""

    held: ClassVar[str]

    def __init__(self, function: Function, constant: Tensor | float) -> None:
        super().__init__()
        self.function = function
        if not isinstance(constant, Tensor | float | int):
            kind = type(constant).__name__
            raise TypeError(f"expected a Function, a tensor or a number; got {kind}")
        if isinstance(constant, Tensor) and not isinstance(constant, nn.Parameter):
            self.register_buffer(self.held, constant)
        else:
            setattr(self, self.held, constant)


class Scaled(_WithConstant):
    """x ↦ λ f(x), with λ a number or one entry a coordinate."""

    held = "factor"

    def forward(self, x: Q) -> Q:
        return self.function(x) * self.factor  # type: ignore[no-any-return]


class Shifted(_WithConstant):
    """x ↦ f(x) + c, with c a number or one entry a coordinate."""

    held = "offset"

    def forward(self, x: Q) -> Q:
        return self.function(x) + self.offset  # type: ignore[no-any-return]


class Composition(Function):
    """The rule of composition: x ↦ g(f(x))."""

    def __init__(self, outer: Function, inner: Function) -> None:
        super().__init__()
        self.outer, self.inner = outer, inner

    def forward(self, x: Q) -> Q:
        return self.outer(self.inner(x))  # type: ignore[no-any-return]
