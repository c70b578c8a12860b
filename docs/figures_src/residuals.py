"""Residuals of Algorithm 1, step by step, in an easy and in a hard layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from figures_src.parts import GREY, ORANGE, TEAL, VIOLET, Picture, panels
from figures_src.trained import EASY, HARD, Target
from mintnet import FixedPoint
from mintnet.figures.style import Theme
from mintnet.solvers import TOLERANCES

ALPHAS = {"1": 1.0, "2/3": 2 / 3, "1/3.5": 1 / 3.5, "3.5": 3.5}


def residuals(layers: dict[int, Target], most: int) -> Picture:
    """The residual after each step, for an easy and a hard layer."""
    traces: dict[int, dict[str, Tensor]] = {EASY: {}, HARD: {}}
    facts = []
    for n, found in traces.items():
        for name, step in ALPHAS.items():
            solver = FixedPoint(step, most, tolerance=0, allow_any_step=True, keep_trace=True)
            solution = layers[n].layer.solve(layers[n].z, solver)
            assert solution.trace is not None
            found[name] = solution.trace.amax(1)
            below = (found[name] <= TOLERANCES[torch.float32]).nonzero().flatten()
            when = (
                f"all below 5e-6 after {int(below[0])} steps"
                if len(below)
                else f"not below 5e-6 in {most} steps, {float(found[name][-1]):.1e} at the end"
            )
            facts.append(f"layer {n}, α = {name}: {when}")

    def draw(axes: Any, theme: Theme) -> None:
        figure = axes.figure
        for place, (n, found), word in zip(
            panels(axes, 1, 2, sharey=True),
            traces.items(),
            ("an easy layer", "a hard layer"),
            strict=True,
        ):
            for (name, trace), colour in zip(
                found.items(), (TEAL, VIOLET, GREY, ORANGE), strict=True
            ):
                place.semilogy(trace.clamp(max=1e30), color=colour, label=f"α = {name}")
            place.axhline(TOLERANCES[torch.float32], color=theme.quiet, linewidth=1, linestyle="--")
            place.set(ylim=(2e-8, 1e3), xlim=(0, most), title=f"Layer {n}: {word}", xlabel="step")
            place.text(
                most,
                6.5e-6,
                "certified below",
                ha="right",
                va="bottom",
                fontsize=9,
                color=theme.quiet,
            )
        figure.axes[0].set_ylabel("residual, worst sample")
        handles, labels = place.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9.5
        )

    return Picture("residuals", draw, (8.2, 3.7), facts)
