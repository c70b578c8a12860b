"""Numbers that carry their slope: the triangular calculus itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mintnet.calculus.conditioner import Conditioner, MonotoneMap
from mintnet.calculus.elementwise import Elementwise
from mintnet.calculus.linear import LinearMap
from mintnet.calculus.ordering import Ordering, common
from mintnet.calculus.quantity import Quantity, check_groups, check_same_shape, fitting


@dataclass(frozen=True)
class Value(Quantity):
    r"""A value v(x) with its slope, the derivative of each entry in *its own* coordinate.

    The slope obeys the rules of dual numbers:

        input            v = x                 slope 1
        masked linear    v = W u + b           slope diag(W) · slope(u)
        activation       v = h(u)              slope h'(u) · slope(u)
        network of strictly earlier entries    slope 0
        λ u + μ w                              λ slope(u) + μ slope(w)
        u · w                                  slope(u) · w + u · slope(w)

    so that at the end of a triangular function the slope is the diagonal of its Jacobian.

    Shapes: ``data`` and ``slope`` are (batch, groups * copies, ...), with copy k of group c at
    index ``c * copies + k``; each entry's own coordinate is (c, ...) of the input.

    Examples:
        >>> x = variable(torch.tensor([[1.0, 2.0]]))
        >>> y = 3 * x + x * x
        >>> y.data, y.slope
        (tensor([[ 4., 10.]]), tensor([[5., 7.]]))
    """

    data: Tensor
    slope: Tensor
    ordering: Ordering | None = None
    groups: int | None = None

    def through(self, linear: LinearMap) -> Value:
        check_groups(linear, self.groups, tuple(self.data.shape[1:]))
        slope = mix(self.slope, linear.diagonal().to(self.slope.dtype))
        ordering = common(self.ordering, linear.ordering)
        return Value(linear(self.data), slope, ordering, linear.groups)

    def apply(self, function: Elementwise) -> Value:
        data, slope = function.value_and_slope(self.data)
        return replace(self, data=data, slope=slope * self.slope)

    def conditioned(self, conditioner: Conditioner) -> tuple[Value, ...]:
        ordering, none = common(self.ordering, conditioner.ordering), torch.zeros_like(self.data)
        parts = conditioner(_as(self.data, conditioner.parameters()))
        parts = [part + (part - part) for part in parts]  # ∞ becomes NaN: nothing may squash it
        return tuple(Value(part.to(none), none, ordering, self.groups) for part in parts)

    def through_monotone(self, function: MonotoneMap) -> Value:
        found = function.value_and_slope(_as(self.data, function.tensors()))
        data, slope = (part.to(self.data) for part in found)
        ordering = common(self.ordering, function.ordering)
        return replace(self, data=data, slope=slope * self.slope, ordering=ordering)

    def add(self, other: Value) -> Value:
        check_same_shape(self.data, other.data, "add")
        return self._with(other, self.data + other.data, self.slope + other.slope)

    def multiply(self, other: Value) -> Value:
        check_same_shape(self.data, other.data, "multiply")
        slope = self.slope * other.data + self.data * other.slope
        return self._with(other, self.data * other.data, slope)

    def _with(self, other: Value, data: Tensor, slope: Tensor) -> Value:
        ordering = common(self.ordering, other.ordering)
        return Value(data, slope, ordering, self.groups or other.groups)

    def scale(self, factor: Tensor | float) -> Value:
        factor = fitting(factor, tuple(self.data.shape[1:]))
        return replace(self, data=self.data * factor, slope=self.slope * factor)

    def shift(self, offset: Tensor | float) -> Value:
        return replace(self, data=self.data + fitting(offset, tuple(self.data.shape[1:])))

    def log_det(self) -> Tensor:
        """Σ log |slope| over the entries of each sample. Shape: (batch,)."""
        logs = self.slope.abs().log()
        if not bool(within_range(logs)):
            remedy = "take inputs in float64, or a Composed, which does"
            raise ValueError(f"a slope is 0 or beyond the range of {self.slope.dtype}: {remedy}")
        return logs.flatten(1).sum(1)


def variable(x: Tensor) -> Value:
    """The input of a triangular function: the value x itself, with slope 1.

    Examples:
        >>> variable(torch.zeros(1, 2)).slope
        tensor([[1., 1.]])
    """
    return Value(x, torch.ones_like(x), groups=x.shape[1])


def within_range(logs: Tensor) -> Tensor:
    """Whether all are logarithms of normal numbers, with relative accuracy, of their dtype."""
    return (logs.abs() < -math.log(torch.finfo(logs.dtype).tiny)).all()


def _as(data: Tensor, weights: Iterable[Tensor]) -> Tensor:
    """Data in the dtype of the weights that are to see it."""
    return data.to(next((w.dtype for w in weights if w.is_floating_point()), data.dtype))


def mix(slope: Tensor, diagonal: Tensor) -> Tensor:
    """Σ_j D[c, i, j] · slope[b, c, j, ...]: slopes meet copies of their own group alone.

    Shapes: slope (batch, groups * copies_in, ...), diagonal (groups, copies_out, copies_in).
    """
    batch, groups, copies_in = slope.shape[0], diagonal.shape[0], diagonal.shape[2]
    mixed = diagonal @ slope.reshape(batch, groups, copies_in, math.prod(slope.shape[2:]))
    return mixed.reshape(batch, groups * diagonal.shape[1], *slope.shape[2:])
