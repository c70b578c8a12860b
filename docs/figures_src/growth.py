"""How the cost of the wavefront grows, on a CPU and on a GPU."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from figures_src.parts import ROOT, Facts, Picture, panels
from mintnet.figures.bench import draw_growth
from mintnet.figures.style import Theme

RUNS = {"cpu": "2 CPU cores, plain", "gpu": "one H200, one kernel"}


def growth() -> Picture:
    """Seconds of one layer over sizes and batches, with what linear growth would be."""
    folder = ROOT / "results" / "inversion"
    runs = {name: json.loads((folder / f"growth-{name}.json").read_text()) for name in RUNS}
    facts = Facts()
    for name, figures in runs.items():
        over = {
            what: figures[f"over_{what}"][-1]["seconds"] / figures[f"over_{what}"][0]["seconds"]
            for what in ("size", "batch")
        }
        facts.append(
            f"{RUNS[name]}: 256 times the pixels take {over['size']:.1f} times as long, "
            f"256 times the samples {over['batch']:.1f} times"
        )

    def draw(axes: Any, theme: Theme) -> None:
        for place, name in zip(panels(axes, 1, 2), RUNS, strict=True):
            partial(draw_growth, figures=runs[name])(place, theme)
            place.set_title(RUNS[name], fontsize=10.5)

    return Picture("growth", draw, (8.5, 3.4), facts)
