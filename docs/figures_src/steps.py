"""Steps of Algorithm 1 in every layer of the trained network."""

from __future__ import annotations

from typing import Any

from figures_src.parts import ORANGE, TEAL, Picture
from figures_src.trained import Target
from mintnet import FixedPoint
from mintnet.figures.style import Theme


def steps(layers: dict[int, Target], most: int) -> Picture:
    """Steps of α = 1 in every layer, and where it never arrives."""
    solved = {
        n: t.layer.solve(t.z, FixedPoint(step=1.0, max_steps=most)) for n, t in layers.items()
    }
    lost = {n: int((~s.converged).sum()) for n, s in solved.items()}
    taken = {n: int(s.steps.max()) for n, s in solved.items()}
    samples = len(layers[1].z)
    verified = [taken[n] for n in layers if not lost[n]]
    facts = [
        f"α = 1, {samples} samples: {len(verified)} of {len(layers)} layers verified, in "
        f"{min(verified)} to {max(verified)} steps; "
        f"{sum(c <= 10 for c in verified)} of them in at most 10",
        *(f"layer {n}: {count} of {samples} samples never" for n, count in lost.items() if count),
    ]

    def draw(axes: Any, theme: Theme) -> None:
        for n in layers:
            axes.bar(n, taken[n], width=0.7, color=ORANGE if lost[n] else TEAL)
            if lost[n]:
                label = f"{lost[n]} of {samples} never"
                axes.text(
                    n,
                    1.2,
                    label,
                    ha="center",
                    va="bottom",
                    rotation=90,
                    color="#ffffff",
                    fontsize=9,
                )
        shapes = [layers[n].layer.event_shape for n in layers]
        for shape in dict.fromkeys(shapes):
            first, last = shapes.index(shape) + 1, len(shapes) - shapes[::-1].index(shape)
            if first > 1:
                axes.axvline(first - 0.5, color=theme.quiet, linewidth=0.8, linestyle=":")
            axes.text(
                (first + last) / 2,
                1.6 * most,
                "×".join(map(str, shape)),
                ha="center",
                va="center",
                color=theme.quiet,
                fontsize=9.5,
            )
        axes.set_yscale("log")
        ticks = [t for t in (1, 2, 5, 10, 20, 50, 120) if t <= most]
        axes.set_yticks(ticks, [str(t) for t in ticks])
        axes.yaxis.minorticks_off()
        axes.set(
            xlim=(0.2, 40.8),
            ylim=(1, 2.1 * most),
            xlabel="layer, in the order of the forward pass",
            ylabel=f"steps, worst of {samples} samples",
        )
        axes.grid(axis="x", visible=False)

    return Picture("steps", draw, (8.2, 3.4), facts)
