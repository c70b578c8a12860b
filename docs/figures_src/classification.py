"""How the classifiers and the ResNets beside them learnt."""

from __future__ import annotations

import json
from typing import Any

from figures_src.parts import ROOT, Facts, Picture, panels
from mintnet.figures.style import Theme, legend

RUNS = ROOT / "results" / "classification"
SETS = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
KINDS = {"classifier": "MintNet", "resnet": "ResNet"}


def classification() -> Picture:
    """The share of mistakes on training batches over the epochs, and the final accuracies."""
    records = {
        (data, kind): json.loads((RUNS / f"{data}-{kind}.json").read_text())
        for data in SETS
        for kind in KINDS
    }
    facts = Facts()
    for (data, kind), record in records.items():
        test, train = (100 * record["final"][part]["accuracy"] for part in ("test", "train"))
        facts.append(
            f"| {SETS[data]}, {KINDS[kind]} | {test:.2f} % | {train:.2f} % "
            f"| {record['parameters'] / 1e6:.1f} M | {record['epochs']:.1f} "
            f"| {record['seconds']:.0f} s |"
        )

    def draw(axes: Any, theme: Theme) -> None:
        for place, data in zip(panels(axes, 1, 2), SETS, strict=True):
            for kind, colour in zip(KINDS, theme.colours, strict=False):
                curve = records[data, kind]["curve"]
                epochs, errors = ([row[column] for row in curve] for column in (0, 4))
                shares = [100 * error for error in errors]
                place.semilogy(epochs, shares, color=colour, label=KINDS[kind])
            place.set_title(SETS[data], fontsize=10.5)
            place.set_xlabel("epochs")
            place.set_ylabel("mistakes in training, %")
            legend(place, theme)

    return Picture("classification", draw, (8.5, 3.2), facts)
