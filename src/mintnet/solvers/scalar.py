"""Many monotone equations in one unknown each, by a bracketed Newton method."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MAX_STEPS = 200
PATIENCE = 30
"""Steps after which every other one cuts the bracket: Newton's method comes down from eˣ with a
step of 1 at a time, and each of them more than halves the residual."""

Evaluate = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(x, columns) ↦ (f(x), f'(x)), for all equations or for some columns of them."""


def solve_monotone(
    evaluate: Evaluate, target: Tensor, start: Tensor, least_slope: Tensor, scale: Tensor
) -> tuple[Tensor, int]:
    """x with f(x) = target, entry by entry, for increasing f.

    A Newton step is taken where it stays inside the bracket and the last one halved the
    residual; otherwise the bracket is halved (plain Newton can crawl between the two sides of
    an activation's kink), or doubled outwards while it is still open. After `PATIENCE` steps
    every other one cuts it in any case, and a very wide one is doubled outwards too. Columns
    that are solved leave; the slow ones go on without them.

    Args:
        evaluate: the functions, see `Evaluate`.
        target: the right-hand sides.
        start: first guesses.
        least_slope: a lower bound of f', or 0: it closes the bracket at the first step.
        scale: residuals below the rounding error of numbers of this size count as 0.

    Shapes: all (..., columns). Returns x and the number of evaluations.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> x, _ = solve_monotone(lambda x, _: (x + x.exp(), 1 + x.exp()), one, 5 * one, one, one)
        >>> x.abs().item() < 1e-6
        True
    """
    eps = torch.finfo(target.dtype).eps
    answer = start.clone()
    columns: Tensor | None = None
    x, floor = start, 2 * eps * scale
    low, high = _open(target)
    last = high
    best, best_size = x, high
    stride = torch.zeros_like(target)
    for step in range(1, MAX_STEPS + 1):
        y, slope = evaluate(x, columns)
        excess = y - target
        size = excess.abs()
        better = size < best_size
        best, best_size = torch.where(better, x, best), torch.where(better, size, best_size)
        newton = excess / slope
        # Done: at the rounding floor, or a step below the last place of x.
        done = (size <= floor) | ((newton.abs() <= eps * x.abs()) & slope.isfinite())
        above = excess > 0
        high, low = torch.where(above, x, high), torch.where(above, low, x)
        if step == 1:
            low, high = _first_bracket(x, excess, least_slope, low, high)
        else:
            done |= (high - low) <= 2 * eps * x.abs()
        busy = ~done.flatten(0, -2).all(0)
        count = int(busy.sum())
        if count == 0:
            break
        reach = newton.abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
        stride = torch.maximum(2 * stride, torch.minimum(reach, 1 + x.abs()))
        late = step >= PATIENCE
        halved = (size <= 0.5 * last) & (not late or step % 2 == 0)
        candidate = _next(x, newton, low, high, halved, stride, above, late)
        x, last = torch.where(done, x, candidate), size
        if count < 0.7 * busy.numel():
            answer = _put(answer, columns, best)
            chosen = busy.nonzero().flatten()
            columns = chosen if columns is None else columns[chosen]
            x, target, floor, low, high, last, best, best_size, stride = (
                part[..., chosen]
                for part in (x, target, floor, low, high, last, best, best_size, stride)
            )
    return _put(answer, columns, best), step


def _next(
    x: Tensor,
    newton: Tensor,
    low: Tensor,
    high: Tensor,
    halved: Tensor,
    stride: Tensor,
    above: Tensor,
    late: bool,
) -> Tensor:
    """Newton's step where it is trusted, else the middle of the bracket, else farther out."""
    candidate = x - newton
    trusted = halved & (candidate > low) & (candidate < high)
    middle = low + (high - low) / 2  # not finite while the bracket is open
    outwards = x - torch.where(above, stride, -stride)
    near = (middle - x).abs() <= stride if late else True
    cut = torch.where(middle.isfinite() & near, middle, outwards)
    return torch.where(trusted, candidate, cut)


def _put(answer: Tensor, columns: Tensor | None, values: Tensor) -> Tensor:
    return values if columns is None else answer.index_copy(-1, columns, values)


def _open(like: Tensor) -> tuple[Tensor, Tensor]:
    infinite = torch.full_like(like, float("inf"))
    return -infinite, infinite


def _first_bracket(
    x: Tensor, excess: Tensor, least_slope: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """With f' ≥ c > 0 the root lies within |excess| / c of x, on the known side."""
    other = x - 1.0001 * excess / least_slope  # not finite where nothing is known
    above, known = excess > 0, other.isfinite()
    return torch.where(above & known, other, low), torch.where(~above & known, other, high)
