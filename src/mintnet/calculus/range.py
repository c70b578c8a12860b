"""Bounds that hold for every input: the calculus walked with ranges instead of numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mintnet.calculus.interval import Interval, linear_image
from mintnet.calculus.ordering import Ordering, common
from mintnet.calculus.quantity import Quantity, check_groups, check_same_shape, fitting
from mintnet.calculus.value import mix

if TYPE_CHECKING:
    from mintnet.calculus.conditioner import Conditioner
    from mintnet.calculus.elementwise import Elementwise
    from mintnet.calculus.linear import LinearMap
    from mintnet.calculus.monotone import MonotoneMap


@dataclass(frozen=True)
class Range(Quantity):
    """What is known of a value and its slope for all inputs at once.

    Besides the two intervals it carries where the value is affine in its own coordinate (with
    the earlier entries fixed), ``blame``, the part at which the slope first lost its sign, and
    ``maker``, what to call it when it is to blame.
    Shapes: a batch of one, otherwise as in `Value`.
    """

    value: Interval
    slope: Interval
    affine: Tensor
    ordering: Ordering | None = None
    blame: str | None = None
    groups: int | None = None
    maker: str = "values"

    def through(self, linear: LinearMap) -> Range:
        check_groups(linear, self.groups, tuple(self.value.low.shape[1:]))
        linear.require_triangular()
        weight = linear.weight.detach().cpu()
        value = linear_image(self.value, weight, linear.apply)
        if linear.bias is not None:
            bias = linear.bias.reshape(-1, *(1,) * (value.low.dim() - 2))
            value = value + Interval.point(bias, value.low.shape)
        diagonal = linear.diagonal().detach().cpu().double()
        slope = linear_image(self.slope, diagonal, mix)
        curved = mix((~self.affine).double(), (diagonal != 0).double()) > 0
        ordering = common(self.ordering, linear.ordering)
        return self._result(value, slope, ~curved, ordering, f"{linear}: its terms", self)

    def apply(self, function: Elementwise) -> Range:
        value = function.value_range(self.value)
        slope = self.slope * function.slope_range(self.value)
        return self._result(value, slope, slope.zero, self.ordering, f"{function}", self)

    def conditioned(self, conditioner: Conditioner) -> tuple[Range, ...]:
        shape = tuple(self.value.low.shape[1:])
        conditioner.check(shape)
        ordering, constant = common(self.ordering, conditioner.ordering), torch.zeros(1, *shape)
        value, slope, name = (
            conditioner.value_range(shape),
            Interval.point(constant),
            str(conditioner),
        )
        image = Range(value, slope, constant == 0, ordering, groups=self.groups, maker=name)
        return (image,) * conditioner.outputs

    def through_monotone(self, function: MonotoneMap) -> Range:
        shape = tuple(self.value.low.shape[1:])
        slope = self.slope * function.slope_range(shape)
        value, ordering = function.value_range(shape), common(self.ordering, function.ordering)
        curved = torch.zeros_like(self.affine)
        return self._result(value, slope, curved, ordering, f"{function}", self)

    def add(self, other: Range) -> Range:
        check_same_shape(self.value.low, other.value.low, "add")
        value, slope = self.value + other.value, self.slope + other.slope
        affine = self.affine & other.affine
        ordering = common(self.ordering, other.ordering)
        what = f"the sum of slopes in {_span(self.slope)} and in {_span(other.slope)}"
        return self._result(value, slope, affine, ordering, what, self, other)

    def multiply(self, other: Range) -> Range:
        check_same_shape(self.value.low, other.value.low, "multiply")
        value = self.value * other.value
        slope = self.slope * other.value + self.value * other.slope
        affine = (self.affine & other.slope.zero) | (other.affine & self.slope.zero)
        ordering = common(self.ordering, other.ordering)
        what = f"the product of {_factor(self)} and {_factor(other)}"
        return self._result(value, slope, affine, ordering, what, self, other)

    def scale(self, factor: Tensor | float) -> Range:
        constant = Interval.point(fitting(factor, tuple(self.value.low.shape[1:])))
        value, slope = self.value * constant, self.slope * constant
        affine = self.affine.expand_as(slope.low)
        return self._result(value, slope, affine, self.ordering, "a factor of 0", self)

    def shift(self, offset: Tensor | float) -> Range:
        offset = fitting(offset, tuple(self.value.low.shape[1:]))
        return replace(self, value=self.value + Interval.point(offset))

    @staticmethod
    def _result(
        value: Interval,
        slope: Interval,
        affine: Tensor,
        ordering: Ordering | None,
        what: str,
        *sources: Range,
    ) -> Range:
        blame = next((source.blame for source in sources if source.blame), None)
        lost = (slope.sign == 0) & ~slope.zero  # a slope of exactly 0 blames nobody until the end
        if blame is None and bool(lost.any()):
            where = lost.nonzero()[0].tolist()[1:]
            part = slope.low[lost][0].item(), slope.high[lost][0].item()
            blame = f"{what} at entry {tuple(where)} can have a slope in {_text(*part)}"
        groups = next((source.groups for source in sources if source.groups), None)
        return Range(value, slope, affine, ordering, blame, groups)


def unbounded(shape: tuple[int, ...]) -> Range:
    """The input of a function: any real numbers, with slope 1. Shape: (1, *shape).

    Examples:
        >>> x = unbounded((2,))
        >>> (x * x).slope.low
        tensor([[-inf, -inf]], dtype=torch.float64)
    """
    ones = torch.ones(1, *shape, dtype=torch.float64)
    return Range(Interval.everything(shape), Interval.point(ones), ones.bool(), groups=shape[0])


def _factor(part: Range) -> str:
    return f"{part.maker} in {_span(part.value)}"


def _span(interval: Interval) -> str:
    return _text(interval.low.min().item(), interval.high.max().item())


def _text(low: float, high: float) -> str:
    return f"[{low:.4g}, {high:.4g}]"
