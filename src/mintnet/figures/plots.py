"""Plots on axes: the course of a run, and Fig. 4a."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch

from mintnet.analysis.reconstruction import ErrorCurve
from mintnet.figures.style import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def series(
    rows: Sequence[dict[str, Any]], kind: str, figure: str = "bpd"
) -> tuple[list[float], list[float]]:
    """Steps and values of one figure of a run's metrics, where it is a finite number."""
    known = [row for row in rows if row.get("kind") == kind]
    known = [row for row in known if isinstance(row.get(figure), int | float)]
    known = [row for row in known if math.isfinite(row[figure])]
    return [float(row["step"]) for row in known], [float(row[figure]) for row in known]


def draw_metrics(
    axes: Axes,
    theme: Theme,
    rows: Sequence[dict[str, Any]],
    figure: str = "bpd",
    label: str = "bits per dimension",
) -> None:
    """Draw a figure in training and on held-out images; the first steep fall is cut off."""
    shown: list[float] = []
    kinds = (("train", "training"), ("validation", "held-out images"))
    for (kind, name), colour in zip(kinds, theme.colours, strict=False):
        steps, values = series(rows, kind, figure)
        if steps:
            style = "-" if kind == "train" or len(steps) > 40 else "o-"
            axes.plot(steps, values, style, color=colour, label=name, markersize=4)
            shown += values[len(values) // 20 :]
    if shown:
        room = 0.06 * (max(shown) - min(shown)) or 0.1
        axes.set_ylim(min(shown) - room, max(shown) + room)
        axes.legend()
    axes.set_xlim(left=0)
    axes.set(xlabel="step", ylabel=label)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")


def draw_error_curves(
    axes: Axes, theme: Theme, curves: Sequence[ErrorCurve], reached: tuple[str, float]
) -> None:
    """Draw each curve with its band on logarithmic axes, and what another solver reached."""
    for curve, colour in zip(curves, cycle(theme.colours), strict=False):
        centre, spread = torch.tensor(curve.centre), torch.tensor(curve.spread)
        band = (centre / spread, centre * spread)
        axes.fill_between(curve.iterations, *band, color=colour, alpha=0.2, linewidth=0)
        axes.plot(curve.iterations, centre, "o-", color=colour, markersize=4, label=curve.label)
    axes.axhline(reached[1], color=theme.quiet, linestyle="--", label=reached[0])
    ticks = curves[0].iterations
    axes.set_xscale("log" if min(ticks) > 0 else "symlog")
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.set_xticks([], minor=True)
    axes.set(yscale="log", ylabel="reconstruction error ‖x − y‖² / D")
    axes.set_xlabel("steps of Algorithm 1 in each layer")
    axes.legend()
