"""The two-round search for the step of Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mintnet.analysis.reconstruction import algorithm_1, pixel_error, typical
from mintnet.models import Flow

COARSE = [1 + k / 2 for k in range(9)]  # d = 1, 1.5, …, 5
FLOOR = 1e-12  # errors below this are rounding, and count as equal


@dataclass(frozen=True)
class Trial:
    """One candidate."""

    divisor: float  # d, which the paper prints as α
    step: float  # 1 / d, the α of Algorithm 1
    error: float  # exp of the mean log reconstruction error
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

    def rank(trial: Trial) -> tuple[float, float]:
        return max(trial.error, FLOOR), abs(trial.divisor - 1)

    z, trials = flow.encode(images), dict[float, Trial]()
    for number in (1, 2):
        divisors = COARSE if number == 1 else around(min(trials.values(), key=rank).divisor)
        for d in (d for d in divisors if d not in trials):
            error = pixel_error(flow, images, algorithm_1(flow, z, 1 / d, iterations))
            trials[d] = Trial(d, 1 / d, float(typical(error)), number)
            report(trials[d])
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
