"""Many monotone equations in one unknown each, by a bracketed Newton method."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MAX_STEPS = 200


def solve_monotone(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    target: Tensor,
    start: Tensor,
    least_slope: Tensor | float,
    scale: Tensor,
) -> tuple[Tensor, int]:
    """x with f(x) = target, entry by entry, for increasing f.

    A Newton step is taken where it stays inside the bracket and the last one halved the
    residual; otherwise the bracket is halved (plain Newton can crawl between the two sides of
    an activation's kink), or doubled outwards while it is still open.

    Args:
        evaluate: x ↦ (f(x), f'(x)).
        target: the right-hand sides.
        start: first guesses.
        least_slope: a lower bound of f', or 0: it closes the bracket at the first step.
        scale: residuals below the rounding error of numbers of this size are 0.

    Shapes: all alike, or broadcasting. Returns x and the number of evaluations.

    Examples:
        >>> x, _ = solve_monotone(
        ...     lambda x: (x + x.exp(), 1 + x.exp()), torch.ones(1), torch.zeros(1) + 5, 1.0,
        ...     torch.ones(1))
        >>> x.abs().item() < 1e-6
        True
    """
    eps = torch.finfo(target.dtype).eps
    x = start
    low = torch.full_like(target, -float("inf"))
    high = torch.full_like(target, float("inf"))
    last = torch.full_like(target, float("inf"))
    best, best_size = x, last
    stride = torch.zeros_like(target)
    for step in range(1, MAX_STEPS + 1):
        y, slope = evaluate(x)
        excess = y - target
        size = excess.abs()
        better = size < best_size
        best, best_size = torch.where(better, x, best), torch.where(better, size, best_size)
        above = excess > 0
        high, low = torch.where(above, x, high), torch.where(above, low, x)
        if step == 1:
            low, high = _first_bracket(x, excess, least_slope, low, high)
        newton = excess / slope
        # Done: an exact hit, a step below the last place of x, or nothing left in the bracket.
        done = (size <= 0.5 * eps * scale) | (newton.abs() <= eps * x.abs())
        done |= (high - low) <= 2 * eps * x.abs()
        if bool(done.all()):
            break
        candidate = x - newton
        closed = low.isfinite() & high.isfinite()
        crawls = ~(size <= 0.5 * last)
        inside = (candidate > low) & (candidate < high)
        middle = low + (high - low) / 2
        stride = torch.maximum(2 * stride, newton.abs())
        outwards = x - torch.where(above, stride, -stride)
        safe = torch.where(closed, middle, outwards)
        candidate = torch.where(inside & ~crawls, candidate, safe)
        x = torch.where(done, x, candidate)
        last = size
    return best, step


def _first_bracket(
    x: Tensor, excess: Tensor, least_slope: Tensor | float, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """With f' ≥ c > 0 the root lies within |excess| / c of x, on the known side."""
    reach = 1.0001 * excess / least_slope  # infinite where nothing is known
    reach = torch.where(reach.isfinite(), reach, torch.full_like(reach, float("inf")))
    other = x - reach
    above = excess > 0
    low = torch.where(above & other.isfinite(), other, low)
    high = torch.where(~above & other.isfinite(), other, high)
    return low, high
