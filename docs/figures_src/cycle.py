"""The circle in which Algorithm 1 with α = 1 is caught."""

from __future__ import annotations

from typing import Any

import torch

from figures_src.parts import ORANGE, TEAL, Picture
from figures_src.trained import HARD, Target
from mintnet import Wavefront
from mintnet.figures.style import Theme


def cycle(layers: dict[int, Target], most: int) -> Picture:
    """Why α = 1 fails in the hard layer: one coordinate goes to and fro between two points."""
    layer, z = layers[HARD].layer.double(), layers[HARD].z[:1].double()
    root = layer.solve(z, Wavefront()).value
    with torch.no_grad():
        x, seen = layer.start(z), []
        for _ in range(max(most, 100)):
            y, slope = layer.evaluate(x)
            seen.append((x, y - z, slope))
            x = x - (y - z) / slope
        wrong = (seen[-1][1].abs() > 1e-6 * z.abs().max()).flatten().nonzero().flatten()
        place = int(wrong.max() if layer.ordering.upper else wrong.min())  # the first in the order
        points = [tuple(float(part.flatten()[place]) for part in s) for s in seen[-2:]]
        grid = torch.linspace(points[0][0], points[1][0], 161, dtype=torch.float64)
        middle, half = (grid[0] + grid[-1]) / 2, (grid[-1] - grid[0]).abs() / 2
        grid = middle + 1.5 * half * torch.linspace(-1, 1, 161, dtype=torch.float64)
        at = root.expand(161, *root.shape[1:]).clone()
        at.flatten(1)[:, place] = grid
        curve, slopes = (part.flatten(1)[:, place] for part in layer.evaluate(at))
        curve = curve - z.flatten()[place]
    layers[HARD].layer.float()
    low, high = sorted(point[0] for point in points)
    row, column = divmod(place, layer.event_shape[2])
    crossing = float(root.flatten()[place])
    facts = [
        f"layer {HARD}, row {row + 1}, column {column + 1}: the iteration alternates "
        f"between {low:.2f} and {high:.2f}; the root is {crossing:.2f}",
        f"slope at the two points {', '.join(f'{p[2]:.2f}' for p in sorted(points))}, "
        f"largest between them {float(slopes.max()):.2f}",
    ]

    def draw(axes: Any, theme: Theme) -> None:
        axes.axhline(0, color=theme.quiet, linewidth=1)
        axes.plot(grid, curve, color=TEAL, label="f − z of this entry, the earlier ones solved")
        for start, excess, slope in points:
            end = start - excess / slope
            axes.plot(
                [start, end],
                [excess, 0],
                "--",
                color=ORANGE,
                linewidth=1.5,
                label="a full step follows the tangent" if start == low else None,
            )
            axes.plot(
                [end, end],
                [0, next(p[1] for p in points if p[0] != start)],
                ":",
                color=ORANGE,
                linewidth=1.5,
            )
            axes.plot(start, excess, "o", color=ORANGE)
        axes.plot(crossing, 0, "o", color=theme.ink)
        axes.annotate("root", (crossing, 0), (8, -14), textcoords="offset points")
        axes.set(xlabel="x of this entry", ylabel="f − z", xlim=(float(grid[0]), float(grid[-1])))
        axes.legend(loc="upper left", fontsize=9.5)

    return Picture("cycle", draw, (6.4, 3.4), facts)
