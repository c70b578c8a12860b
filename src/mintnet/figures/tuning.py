"""The two-round search for the step of Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mintnet.figures.invertibility import ErrorCurve, invert_with
from mintnet.figures.reconstruction import pixel_error
from mintnet.figures.style import Theme, legend
from mintnet.models import Flow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COARSE = tuple(1 + k / 2 for k in range(9))
"""d = 1, 1.5, …, 5."""


FLOOR = 1e-12
"""Errors below this are rounding, and count as equal."""


@dataclass(frozen=True)
class Trial:
    """One candidate.

    Attributes:
        divisor: d, which the paper prints as α.
        step: 1 / d, the α of Algorithm 1.
        error: exp of the mean log reconstruction error.
        spread: exp of the standard deviation of the log error.
        round: 1 or 2.
    """

    divisor: float
    step: float
    error: float
    spread: float
    round: int

    def to_dict(self) -> dict[str, Any]:
        """The trial as plain data."""
        return asdict(self)


@torch.no_grad()
def tune_step(
    flow: Flow,
    images: Tensor,
    iterations: int = 120,
    tick: Callable[[Trial], None] | None = None,
) -> list[Trial]:
    """Steps 1/d for d = 1, 1.5, …, 5, then by 0.05 around the best; the best comes first.

    Each candidate inverts every layer with that many iterations of Algorithm 1. The one with the
    least reconstruction error wins; of those at the rounding floor, the step nearest to 1.

    Shape: images (N, C, H, W) uint8.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> images = torch.randint(0, 17, (2, 1, 8, 8), dtype=torch.uint8)
        >>> trials = tune_step(flow, images, iterations=3)
        >>> trials[0].divisor < 1.5
        True
    """
    z = flow.encode(images)
    trials: dict[float, Trial] = {}

    def attempt(divisors: Sequence[float], number: int) -> None:
        for divisor in divisors:
            if divisor in trials:
                continue
            step = 1 / divisor
            error = pixel_error(flow, images, invert_with(flow, z, step, iterations))
            curve = ErrorCurve(step, (iterations,), error[None])
            trials[divisor] = Trial(divisor, step, curve.centre[0], curve.spread[0], number)
            if tick:
                tick(trials[divisor])

    attempt(COARSE, 1)
    attempt(around(min(trials.values(), key=_rank).divisor), 2)
    return sorted(trials.values(), key=_rank)


def around(divisor: float) -> list[float]:
    """The second round: within half a unit of the best divisor, by 0.05, above 1/2.

    Examples:
        >>> around(3.5)[:3], around(3.5)[-1], len(around(3.5))
        ([3.0, 3.05, 3.1], 4.0, 21)
        >>> around(1.0)[0]
        0.55
    """
    hundredths = round(100 * divisor)
    near = range(hundredths - 50, hundredths + 51, 5)
    return [k / 100 for k in near if k > 50]  # a step of 2 or more converges nowhere


def draw_trials(axes: Axes, theme: Theme, trials: Sequence[Trial]) -> None:
    """Draw the error of each candidate against its divisor."""
    for number, colour in ((1, theme.colours[3]), (2, theme.colours[0])):
        chosen = sorted((t for t in trials if t.round == number), key=lambda t: t.divisor)
        label = ("first round, by 0.5", "second round, by 0.05")[number - 1]
        axes.plot(
            [t.divisor for t in chosen],
            [max(t.error, 1e-18) for t in chosen],
            "o-",
            color=colour,
            markersize=5 if number == 1 else 4,
            label=label,
        )
    best = min(trials, key=_rank)
    axes.axvline(best.divisor, color=theme.colours[1], linewidth=1.2, linestyle="--")
    axes.set_yscale("log")
    axes.set_xlabel("d, with α = 1/d")
    axes.set_ylabel("reconstruction error ‖x − y‖² / D")
    legend(axes, theme)


def _rank(trial: Trial) -> tuple[float, float]:
    return max(trial.error, FLOOR), abs(trial.divisor - 1)
