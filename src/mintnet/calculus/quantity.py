"""What flows through the calculus, and functions of it, with the rules of Proposition 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from torch import Tensor, nn

from mintnet.calculus.ordering import Ordering

if TYPE_CHECKING:
    from mintnet.calculus.conditioner import Conditioner, MonotoneMap
    from mintnet.calculus.elementwise import Elementwise
    from mintnet.calculus.linear import LinearMap


class Arithmetic(ABC):
    """The operators that follow from sums and products."""

    @abstractmethod
    def __add__(self, other: Any) -> Any: ...

    @abstractmethod
    def __mul__(self, other: Any) -> Any: ...

    def __neg__(self) -> Any:
        return self * -1.0

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __truediv__(self, divisor: Tensor | float) -> Any:
        return self * (1.0 / divisor)

    def __radd__(self, other: Any) -> Any:
        return self + other

    def __rmul__(self, other: Any) -> Any:
        return self * other

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other


class Quantity(Arithmetic):
    """An intermediate result of a triangular function, with the rules of Proposition 1.

    A function written once runs on all kinds: numbers with their slopes (`Value`), bounds over all
    inputs (`Range`), and the traced expression itself (`Expression`). Each kind says how it goes
    ``through`` a triangular linear map, how an element-wise function is ``apply``-ed, what networks
    of strictly earlier entries give (``conditioned``: slope 0), how it goes through a function that
    increases in its own entry (``through_monotone``), and the rules of sums and products, with
    other quantities (``add``, ``multiply``) and with constants (``scale``, ``shift``).
    """

    ordering: Ordering | None

    @abstractmethod
    def through(self, linear: LinearMap) -> Self: ...

    @abstractmethod
    def apply(self, function: Elementwise) -> Self: ...

    @abstractmethod
    def conditioned(self, conditioner: Conditioner) -> tuple[Self, ...]: ...

    @abstractmethod
    def through_monotone(self, function: MonotoneMap) -> Self: ...

    @abstractmethod
    def add(self, other: Self) -> Self: ...

    @abstractmethod
    def multiply(self, other: Self) -> Self: ...

    @abstractmethod
    def scale(self, factor: Tensor | float) -> Self: ...

    @abstractmethod
    def shift(self, offset: Tensor | float) -> Self: ...

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> Any:
        name = getattr(function, "__name__", str(function))
        remedy = "write it with mintnet.calculus, as Tanh()(x), or derive one from Elementwise"
        raise TypeError(f"torch.{name} does not know the slope of its argument: {remedy}")

    def __add__(self, other: Self | Tensor | float) -> Self:
        return self.add(other) if isinstance(other, type(self)) else self.shift(_constant(other))

    def __mul__(self, other: Self | Tensor | float) -> Self:
        if isinstance(other, type(self)):
            return self.multiply(other)
        return self.scale(_constant(other))


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
            raise TypeError(f"expected a Function, tensor or number; got {type(constant).__name__}")
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


def fitting(constant: Tensor | float, event_shape: tuple[int, ...]) -> Tensor | float:
    """A constant that fits samples of that shape, without a batch dimension of its own."""
    if not isinstance(constant, Tensor) or constant.dim() == 0:
        return constant
    shape = tuple(constant.shape)
    if len(shape) == len(event_shape) + 1 and shape[0] == 1:
        constant, shape = constant[0], shape[1:]
    sizes = zip(reversed(shape), reversed(event_shape), strict=False)
    if len(shape) > len(event_shape) or any(a not in (1, b) for a, b in sizes):
        needs = f"samples of shape {event_shape}: it needs one entry a coordinate, or one for all"
        raise ValueError(f"a constant of shape {shape} does not fit {needs}")
    return constant


def check_groups(linear: LinearMap, groups: int | None, shape: tuple[int, ...]) -> None:
    """Raise unless a linear map fits a quantity of that shape (without its batch)."""
    into = linear.weight.shape[1]
    if linear.weight.is_complex() or (linear.bias is not None and linear.bias.is_complex()):
        raise ValueError(f"{linear} has complex weights; the calculus is one of real numbers")
    axes = linear.weight.dim() - 1
    if groups not in (None, linear.groups) or shape[0] != into or len(shape) != axes:
        wanted = f"{linear.groups} channels of the input in {into // linear.groups} copies each"
        got = f"samples of shape {shape} that stem from {groups or 'unknown'} channels"
        raise ValueError(f"{linear} expects {wanted} and samples of {axes} dimensions; got {got}")


def check_same_shape(first: Tensor, second: Tensor, verb: str) -> None:
    """Raise unless the two operands of a sum or product have one shape."""
    if first.shape != second.shape:
        got = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"cannot {verb} shapes {got}: both need the same copies of each channel")


def _constant(value: object) -> Tensor | float:
    if isinstance(value, Tensor):
        if value.is_complex():
            raise ValueError(f"a constant of the calculus is real; got a tensor of {value.dtype}")
        return value
    if isinstance(value, float | int):
        return float(value)
    kind = type(value).__name__
    raise TypeError(f"expected a quantity of the calculus, a tensor or a number; got {kind}")
