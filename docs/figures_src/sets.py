"""Fig. 2: the nested sets of functions."""

from __future__ import annotations

from typing import Any

from figures_src.members import members
from figures_src.parts import GREY, ORANGE, TEAL, VIOLET, Picture
from mintnet.figures.style import Theme


def sets() -> Picture:
    """Fig. 2, each member placed where its Jacobians put it."""
    found = members()
    boxes = {  # left, bottom, right, top, label, colour
        "F": (0.2, 0.3, 11.2, 5.9, "F: triangular Jacobian", GREY),
        "I": (1.9, 0.9, 14.0, 5.3, "", VIOLET),
        "det": (3.5, 1.25, 10.9, 4.5, "det J ≠ 0", ORANGE),
        "positive": (6.0, 1.6, 10.6, 3.85, "diag J > 0", TEAL),
        "one": (8.3, 1.9, 10.35, 3.2, "diag J = 1", TEAL),
    }
    slots = {
        "F": [(0.7, 2.8)],
        "M": [(2.3, 2.8)],
        "det": [(3.8, 2.8)],
        "positive": [(6.35, 2.8), (6.35, 2.15)],
        "one": [(8.6, 2.35)],
        "I": [(11.7, 3.2), (11.7, 2.4)],
    }

    def draw(axes: Any, theme: Theme) -> None:
        from matplotlib.patches import FancyBboxPatch

        axes.set(xlim=(0, 14.2), ylim=(0, 6.2))
        axes.axis("off")
        for left, bottom, right, top, label, colour in boxes.values():
            style = "round,pad=0,rounding_size=0.3"
            corner, width, height = (left, bottom), right - left, top - bottom
            for fill, line in ((colour, "none"), ("none", colour)):
                box = FancyBboxPatch(
                    corner,
                    width,
                    height,
                    boxstyle=style,
                    facecolor=fill,
                    edgecolor=line,
                    linewidth=1.6,
                )
                box.set_alpha(0.09 if fill != "none" else 1)
                axes.add_patch(box)
            axes.text(
                left + 0.25, top - 0.2, label, va="top", color=theme.ink, fontsize=10, weight="bold"
            )
        axes.text(13.75, 5.1, "I: invertible", ha="right", va="top", fontsize=10, weight="bold")
        axes.text(2.15, 5.1, "M: both", va="top", fontsize=10, weight="bold")
        taken = dict.fromkeys(slots, 0)
        for member in found:
            place = member.place()
            px, py = slots[place][taken[place]]
            taken[place] += 1
            axes.plot(px, py, "o", color=theme.ink, markersize=4.5)
            axes.text(px + 0.22, py, member.name, va="center", fontsize=10)

    return Picture("sets", draw, (8.2, 3.6), [member.row() for member in found])
