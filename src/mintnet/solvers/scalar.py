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

    ``least_slope`` is a lower bound of f', or 0: it closes the bracket at the first step.
    Residuals below the rounding error of numbers of the size ``scale`` count as 0.

    Shapes: all (..., columns). Returns x and the number of evaluations.
    """
    eps = torch.finfo(target.dtype).eps
    answer = best = x = start
    columns: Tensor | None = None
    floor, stride = 2 * eps * scale, torch.zeros_like(target)
    high = last = best_size = torch.full_like(target, float("inf"))
    low = -high
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
        if step == 1:  # with f' ≥ c > 0 the root lies within |excess| / c of x
            other = x - 1.0001 * excess / least_slope
            known = other.isfinite()
            low = torch.where(above & known, other, low)
            high = torch.where(~above & known, other, high)
        else:
            done |= (high - low) <= 2 * eps * x.abs()
        busy = ~done.flatten(0, -2).all(0)
        count = int(busy.sum())
        if count == 0:
            break
        reach = newton.abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
        stride = torch.maximum(2 * stride, torch.minimum(reach, 1 + x.abs()))
        late = step >= PATIENCE
        candidate = x - newton
        trusted = (size <= 0.5 * last) & (candidate > low) & (candidate < high)
        middle = low + (high - low) / 2  # not finite while the bracket is open
        near = (middle - x).abs() <= stride if late else True
        outwards = x - torch.where(above, stride, -stride)
        cut = torch.where(middle.isfinite() & near, middle, outwards)
        if not late or step % 2 == 0:
            cut = torch.where(trusted, candidate, cut)
        x, last = torch.where(done, x, cut), size
        if count < 0.7 * busy.numel():
            answer = best if columns is None else answer.index_copy(-1, columns, best)
            chosen = busy.nonzero().flatten()
            columns = chosen if columns is None else columns[chosen]
            x, target, floor, low, high, last, best, best_size, stride = (
                part[..., chosen]
                for part in (x, target, floor, low, high, last, best, best_size, stride)
            )
    return best if columns is None else answer.index_copy(-1, columns, best), step
