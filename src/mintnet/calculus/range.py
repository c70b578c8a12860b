"""Bounds that hold for every input: the calculus walked with ranges instead of numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mintnet.calculus.conditioner import Conditioner, MonotoneMap
from mintnet.calculus.elementwise import Elementwise
from mintnet.calculus.interval import Interval, linear_image
from mintnet.calculus.linear import LinearMap
from mintnet.calculus.ordering import Ordering, common
from mintnet.calculus.quantity import Quantity, check_groups, check_same_shape, fitting
from mintnet.calculus.value import mix


@dataclass(frozen=True)
class Range(Quantity):
    """What is known of a value and its slope for all inputs at once.

    Besides the two intervals it carries where the value is affine in its own coordinate (with the
    earlier entries fixed), ``blame``, the part at which the slope first lost its sign, and
    ``maker``, its name in such a message. Shapes: a batch of one, otherwise as in `Value`.
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
        if bool((linear.weight.detach().cpu()[~linear.mask()] != 0).any()):
            raise ValueError(f"{linear} is not triangular in the {linear.ordering}: mask it first")
        value = linear_image(self.value, linear.weight.detach().cpu(), linear.apply)
        if (bias := linear.bias_for(value.low)) is not None:
            value = value + Interval.point(bias)
        diagonal = linear.diagonal().detach().cpu().double()
        slope = linear_image(self.slope, diagonal, mix)
        curved = mix((~self.affine).double(), (diagonal != 0).double()) > 0
        return self._then(f"{linear}: its terms", value, slope, ~curved, linear)

    def apply(self, function: Elementwise) -> Range:
        place = torch.full_like(self.value.low, 0.7)
        first, again = (torch.cat(function.value_and_slope(place)).nan_to_num() for _ in range(2))
        if not torch.equal(first, again):
            raise ValueError(f"{function} is another one each time, so that nothing can be proved")
        value = function.value_range(self.value)
        slope = self.slope * function.slope_range(self.value)
        return self._then(f"{function}", value, slope, slope.zero)

    def conditioned(self, conditioner: Conditioner) -> tuple[Range, ...]:
        shape = tuple(self.value.low.shape[1:])
        ordering, constant = common(self.ordering, conditioner.ordering), torch.zeros(1, *shape)
        value, slope, blame = conditioner.value_range(shape), Interval.point(constant), None
        if not conditioner.check(shape):
            slope = Interval.everything(shape)
            blame = f"{conditioner} is NaN or infinite for some inputs, though its weights are not"
        image = Range(value, slope, slope.zero, ordering, blame, self.groups, str(conditioner))
        return (image,) * conditioner.outputs

    def through_monotone(self, function: MonotoneMap) -> Range:
        shape, curved = tuple(self.value.low.shape[1:]), torch.zeros_like(self.affine)
        slope = self.slope * function.slope_range(shape)
        return self._then(f"{function}", Interval.everything(shape), slope, curved, function)

    def add(self, other: Range) -> Range:
        check_same_shape(self.value.low, other.value.low, "add")
        value, slope = self.value + other.value, self.slope + other.slope
        what = f"the sum of slopes in {_span(self.slope)} and in {_span(other.slope)}"
        return self._then(what, value, slope, self.affine & other.affine, other)

    def multiply(self, other: Range) -> Range:
        check_same_shape(self.value.low, other.value.low, "multiply")
        slope = self.slope * other.value + self.value * other.slope
        affine = (self.affine & other.slope.zero) | (other.affine & self.slope.zero)
        factors = (f"{part.maker} in {_span(part.value)}" for part in (self, other))
        what = f"the product of {' and '.join(factors)}"
        return self._then(what, self.value * other.value, slope, affine, other)

    def scale(self, factor: Tensor | float) -> Range:
        constant = Interval.point(fitting(factor, tuple(self.value.low.shape[1:])))
        value, slope = self.value * constant, self.slope * constant
        return self._then("a factor of 0", value, slope, self.affine.expand_as(slope.low))

    def shift(self, offset: Tensor | float) -> Range:
        offset = fitting(offset, tuple(self.value.low.shape[1:]))
        return replace(self, value=self.value + Interval.point(offset))

    def _then(
        self, what: str, value: Interval, slope: Interval, affine: Tensor, other: Any = None
    ) -> Range:
        """The range of ``what`` is made of this one, and of another range or map."""
        ordering, blame, groups = self.ordering, self.blame, self.groups
        if other is not None:
            ordering = common(ordering, other.ordering)
        if isinstance(other, Range):
            blame, groups = blame or other.blame, groups or other.groups
        lost = (slope.sign == 0) & ~slope.zero  # a slope of exactly 0 blames nobody until the end
        if blame is None and bool(lost.any()):
            where = tuple(lost.nonzero()[0].tolist()[1:])
            ends = slope.low[lost][0].item(), slope.high[lost][0].item()
            blame = f"{what} at entry {where} can have a slope in {_text(*ends)}"
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


def _span(interval: Interval) -> str:
    return _text(interval.low.min().item(), interval.high.max().item())


def _text(low: float, high: float) -> str:
    return f"[{low:.4g}, {high:.4g}]"
