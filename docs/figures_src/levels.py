"""The levels of the wavefront."""

from __future__ import annotations

import math
from typing import Any

import torch

from figures_src.parts import ORANGE, PALE, TEAL, UNSEEN, Picture, cells, key, panels
from mintnet.figures.style import Theme
from mintnet.solvers.schedule import level_of


def levels() -> Picture:
    """The level schedule: the numbers, and one moment of the walk."""
    one, three, now = level_of((1, 8, 8), 1)[0], level_of((3, 8, 8), 1), 14
    moment = torch.where(three < now, 0, torch.where(three == now, 1, 2))
    shapes = ((1, 28, 28), (4, 14, 14), (16, 7, 7))
    facts = [
        f"{'×'.join(map(str, s))}: {1 + int(level_of(s, 1).max())} levels, {math.prod(s)} entries"
        for s in shapes
    ]
    facts.append(f"picture: level {now}, {int((three == now).sum())} entries at once")

    def draw(axes: Any, theme: Theme) -> None:
        places = panels(axes, 1, 4)
        shade = theme_ramp(int(one.max()) + 1)
        cells(places[0], one, shade, "Levels, one channel")
        for r in range(8):
            for q in range(8):
                number = int(one[r, q])
                colour = "#ffffff" if number > 11 else theme.ink
                places[0].text(
                    q + 0.5,
                    r + 0.53,
                    str(number),
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    color=colour,
                )
        for c in range(3):
            cells(
                places[1 + c], moment[c], [PALE, ORANGE, UNSEEN], f"Channel {'ABC'[c]}, level {now}"
            )
        key(
            places[0].figure,
            [(PALE, "solved"), (ORANGE, "solved now, all at once"), (UNSEEN, "to come")],
        )

    return Picture("levels", draw, (8.2, 2.75), facts)


def theme_ramp(count: int) -> list[str]:
    """Colours from pale to the first of the theme."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    ramp = LinearSegmentedColormap.from_list("ramp", ["#eef6f6", TEAL])
    return [to_hex(ramp(i / max(count - 1, 1))) for i in range(count)]
