"""How the density models in the box learnt."""

from __future__ import annotations

import json
from typing import Any

from figures_src.parts import ROOT, Facts, Picture, panels
from mintnet.figures.style import Theme, legend

RUNS = ROOT / "results" / "training"
PAPER = {"mnist": ("MNIST", 0.98), "cifar10": ("CIFAR-10", 3.32)}


def density() -> Picture:
    """Held-out bits per dimension over the steps, one line a part, and the test set at the end."""
    records = {name: json.loads((RUNS / f"{name}.json").read_text()) for name in PAPER}
    tests = {name: record["test"] for name, record in records.items()}
    facts = Facts()
    for name, (title, _) in PAPER.items():
        test = tests[name]
        facts.append(f"{title}: {test['bits_per_dim']:.4f} ± {test['standard_error']:.4f}")

    def draw(axes: Any, theme: Theme) -> None:
        for place, (name, (title, paper)) in zip(panels(axes, 1, 2), PAPER.items(), strict=True):
            line, dot, _, grey = theme.colours
            begun = 0
            for part in records[name].get("parts", [records[name]]):
                steps, bits = zip(*part["held_out"], strict=True)
                label = None if begun else "held-out training images"
                at = [(begun + step) / 1000 for step in steps]
                place.plot(at, bits, ".-", color=line, label=label)
                begun += part["steps"]
            place.plot(begun / 1000, tests[name]["bits_per_dim"], "o", color=dot, label="test set")
            place.axhline(paper, color=grey, linestyle="--", label="the paper's, on the test set")
            place.set_title(title, fontsize=10.5)
            place.set_xlabel("thousand steps")
            place.set_ylabel("bits per dimension")
            legend(place, theme)

    return Picture("density", draw, (8.5, 3.2), facts)
