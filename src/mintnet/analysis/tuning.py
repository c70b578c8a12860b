"""The two-round search for the step of Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mintnet.analysis.invertibility import ErrorCurve, algorithm_1
from mintnet.analysis.reconstruction import pixel_error
from mintnet.models import Flow

COARSE = tuple(1 + k / 2 for k in range(9))
"""d = 1, 1.5, …, 5."""

FLOOR = 1e-12
"""Errors below this are rounding, and count as equal."""

TRIALS = 28
"""At most this many steps are tried."""


@dataclass(frozen=True)
class Trial:
    """One candidate."""

    divisor: float  # d, which the paper prints as α
    step: float  # 1 / d, the α of Algorithm 1
    error: float  # exp of the mean log reconstruction error
    spread: float  # exp of the standard deviation of the log error
    round: int  # 1 or 2


@torch.no_grad()
def tune_step(
    flow: Flow,
    images: Tensor,
    iterations: int = 120,
    report: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:
    """Steps 1/d for d = 1, 1.5, …, 5, then by 0.05 around the best; the best comes first.

    Each candidate inverts every layer with that many steps of Algorithm 1. The one with the
    least reconstruction error wins; of those at the rounding floor, the step nearest to 1.

    Examples:
        >>> images = torch.randint(0, 17, (2, 1, 8, 8), dtype=torch.uint8)
        >>> tune_step(Flow.preset("digits"), images, iterations=3)[0].divisor < 1.5
        True
    """
    z = flow.encode(images)
    trials: dict[float, Trial] = {}

    def attempt(divisors: Sequence[float], number: int) -> None:
        for divisor in divisors:
            if divisor in trials:
                continue
            error = pixel_error(flow, images, algorithm_1(flow, z, 1 / divisor, iterations))
            curve = ErrorCurve(1 / divisor, (iterations,), error[None])
            trials[divisor] = Trial(divisor, 1 / divisor, curve.centre[0], curve.spread[0], number)
            report(trials[divisor])

    attempt(COARSE, 1)
    attempt(around(min(trials.values(), key=rank).divisor), 2)
    return sorted(trials.values(), key=rank)


def around(divisor: float) -> list[float]:
    """The second round: within half a unit of the best divisor, by 0.05, above 1/2.

    Examples:
        >>> around(3.5)[:3], around(3.5)[-1], around(1.0)[0]
        ([3.0, 3.05, 3.1], 4.0, 0.55)
    """
    hundredths = round(100 * divisor)
    near = range(hundredths - 50, hundredths + 51, 5)
    return [k / 100 for k in near if k > 50]  # a step of 2 or more converges nowhere


def rank(trial: Trial) -> tuple[float, float]:
    """The smaller, the better."""
    return max(trial.error, FLOOR), abs(trial.divisor - 1)
