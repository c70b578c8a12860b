"""Intervals with outward rounding and a strict sign: the arithmetic of the proofs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

INF = float("inf")
LARGEST = torch.finfo(torch.float64).max
TINIEST = 2.0**-1074


@dataclass(frozen=True)
class Interval:
    """Sets {low ≤ v ≤ high}, entry by entry, in float64, rounded outwards.

    ``sign`` is +1 or −1 where every member is strictly of that sign, even if the bound itself is
    0 (exp is positive although its infimum is 0), and 0 where nothing is known. 0 · ∞ counts as
    0, since infinity stands for "arbitrarily large", never for a member.
    """

    low: Tensor
    high: Tensor
    sign: Tensor

    @staticmethod
    def of(low: Tensor, high: Tensor, sign: Tensor | None = None) -> Interval:
        """An interval whose sign follows from its bounds, and from ``sign`` where it knows more."""
        unknown = low.isnan() | high.isnan()
        # A lower bound that overflowed says "larger than any number here", no more.
        low = torch.where(unknown, -INF, low.double()).clamp(max=LARGEST)
        high = torch.where(unknown, INF, high.double()).clamp(min=-LARGEST)
        known = (low > 0).to(torch.int8) - (high < 0).to(torch.int8)
        if sign is not None:
            known = torch.where((known == 0) & ~unknown, sign, known)
            # What is strictly positive is not 0, even where its bounds have underflowed.
            low = torch.where(known > 0, low.clamp(min=0), low)
            low = torch.where(known < 0, low.clamp(max=-TINIEST), low)
            high = torch.where(known < 0, high.clamp(max=0), high)
            high = torch.where(known > 0, high.clamp(min=TINIEST), high)
        return Interval(low, high, known)

    @staticmethod
    def point(value: Tensor | float) -> Interval:
        exact = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
        exact = torch.where(exact.isinf(), float("nan"), exact)  # no number: nothing is known
        return Interval.of(exact, exact)

    @staticmethod
    def everything(shape: tuple[int, ...]) -> Interval:
        """All reals, for a batch of one sample of that shape: (1, *shape)."""
        high = torch.full((1, *shape), INF, dtype=torch.float64)
        return Interval.of(-high, high)

    @property
    def zero(self) -> Tensor:
        """Where the only member is 0."""
        return (self.low == 0) & (self.high == 0) & (self.sign == 0)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low, -self.sign)

    def __add__(self, other: Interval) -> Interval:
        low = _add_down(self.low, other.low)
        high = -_add_down(-self.high, -other.high)
        positive = ((self.sign > 0) & (other.low >= 0)) | ((other.sign > 0) & (self.low >= 0))
        negative = ((self.sign < 0) & (other.high <= 0)) | ((other.sign < 0) & (self.high <= 0))
        return Interval.of(low, high, positive.to(torch.int8) - negative.to(torch.int8))

    def __mul__(self, other: Interval) -> Interval:
        ends = torch.broadcast_tensors(self.low, self.high, other.low, other.high)
        a, b = torch.stack(ends)[[0, 0, 1, 1]], torch.stack(ends)[[2, 3, 2, 3]]  # four corners
        low, high = _multiply_down(a, b).amin(0), -_multiply_down(-a, b).amin(0)
        return Interval.of(low, high, self.sign * other.sign)


def linear_image(
    interval: Interval, weight: Tensor, apply: Callable[[Tensor, Tensor], Tensor]
) -> Interval:
    """The image under the linear map ``apply(data, weight)``, widened by the bound γ_n Σ|terms|."""
    weight = weight.double()
    up, down = weight.clamp(min=0), weight.clamp(max=0)

    def total(of_low: Tensor, of_high: Tensor) -> Tensor:
        return apply(of_low, up) + apply(of_high, down)

    def any_of(of_up: Tensor, of_down: Tensor) -> Tensor:
        signs = (up > 0).double(), (down < 0).double()
        return apply(of_up.double(), signs[0]) + apply(of_down.double(), signs[1]) > 0

    low, high = (torch.where(end.isinf(), 0.0, end) for end in (interval.low, interval.high))
    terms = weight[0].numel()
    share = 4 * terms * 2.0**-53 / (1 - 4 * terms * 2.0**-53)
    error = share * apply(torch.maximum(low.abs(), high.abs()), weight.abs())
    # Each product may underflow, and then each of the few roundings that follow.
    touched = apply((~interval.zero).double(), (weight != 0).double()) > 0
    error = error + 4 * (terms + 1) * TINIEST * touched.double()
    lowest, highest = total(low, high) - error, total(high, low) + error
    can_be_negative = any_of(interval.low < 0, interval.high > 0)
    can_be_positive = any_of(interval.high > 0, interval.low < 0)
    lowest, highest = lowest.nan_to_num(-INF, INF, -INF), highest.nan_to_num(INF, INF, -INF)
    lowest = torch.where(can_be_negative, lowest, lowest.clamp(min=0))
    highest = torch.where(can_be_positive, highest, highest.clamp(max=0))
    lowest = torch.where(any_of(interval.low == -INF, interval.high == INF), -INF, lowest)
    highest = torch.where(any_of(interval.high == INF, interval.low == -INF), INF, highest)
    positive = any_of(interval.sign > 0, interval.sign < 0) & ~can_be_negative
    negative = any_of(interval.sign < 0, interval.sign > 0) & ~can_be_positive
    return Interval.of(lowest, highest, positive.to(torch.int8) - negative.to(torch.int8))


def widened(value: Tensor, towards: float, floor: float, ceiling: float) -> Tensor:
    """A computed function value moved outwards past its rounding, within its analytic range."""
    moved = value + (16 * 2.0**-52 * value.abs() + 16 * TINIEST) * (1 if towards > 0 else -1)
    return torch.where(value.isinf(), value, moved).clamp(floor, ceiling)


def _add_down(a: Tensor, b: Tensor) -> Tensor:
    """a + b rounded towards −∞ (the rounding error is computed exactly, after Knuth)."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    # A NaN error comes from infinite operands, whose sum is exact.
    return torch.where(error < 0, torch.nextafter(total, torch.full_like(total, -INF)), total)


def _multiply_down(a: Tensor, b: Tensor) -> Tensor:
    """a · b rounded towards −∞, with 0 · ∞ = 0."""
    product = a * b
    exact = (a.abs() == 1) | (b.abs() == 1) | product.isinf()
    product = torch.where(exact, product, product.nextafter(torch.full_like(product, -INF)))
    return torch.where((a == 0) | (b == 0), 0.0, product)
