"""Passes of a layer's network for a sample against D, from the results of the benchmark."""

from __future__ import annotations

import json
from typing import Any

from figures_src.parts import ORANGE, ROOT, TEAL, Picture
from mintnet.figures.style import Theme


def accelerate() -> Picture:
    """What the library takes, D, and what Jacobi's iteration takes."""
    rows = json.loads((ROOT / "results" / "accelerate.json").read_text())["rows"]
    facts = [
        f"{title}: {row['passes_per_layer']} passes, {row['faster']} times faster"
        for title, row in rows.items()
    ]
    points = sorted(
        (row["dimensions"], row["passes_per_layer"])
        for title, row in rows.items()
        if title.startswith("zuko MAF")
    )

    def draw(axes: Any, theme: Theme) -> None:
        sizes = [size for size, _ in points]
        axes.plot(sizes, sizes, "o-", color=ORANGE, label="zuko: one pass for each coordinate")
        axes.plot(sizes, [n for _, n in points], "o-", color=TEAL, label="mintnet.accelerate")
        for size, passes in points:
            axes.annotate(
                f"{passes:.1f}",
                (size, passes),
                textcoords="offset points",
                xytext=(0, 7),
                ha="center",
                fontsize=9,
                color=theme.quiet,
            )
        axes.set(xscale="log", yscale="log", ylim=(2, 1500))
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_yticks([5, 10, 50, 100, 500, 1000], ["5", "10", "50", "100", "500", "1,000"])
        axes.minorticks_off()
        axes.set(xlabel="D", ylabel="passes of a layer for a sample")
        axes.legend(frameon=False, loc="upper left")

    return Picture("accelerate", draw, (6.4, 3.4), facts)
