"""What the figures share: colours, small matrices of squares, weights away from their start."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.figures.style import LIGHT, Theme

ROOT = Path(__file__).resolve().parents[2]

TEAL, ORANGE, VIOLET, GREY = LIGHT.colours
UNSEEN, PALE = "#e4e8ec", "#a9d6d3"

Draw = Callable[[Any, Theme], None]
Facts = list[str]


@dataclass(frozen=True)
class Picture:
    """A figure: its file name, how to draw it, its size in inches, and what the pages quote."""

    name: str
    draw: Draw
    size: tuple[float, float]
    facts: Facts


def panels(axes: Any, rows: int, columns: int, **options: Any) -> Any:
    """Several axes in place of the one that `render` gives."""
    figure = axes.figure
    axes.remove()
    return figure.subplots(rows, columns, **options)


def cells(axes: Any, codes: Tensor, colours: list[str], title: str = "") -> None:
    """A matrix of whole numbers as coloured squares; negative ones are left out."""
    height, width = codes.shape
    for code, colour in enumerate(colours):  # neighbours of one colour are one bar: small files
        for r, row in enumerate((codes == code).int().tolist()):
            edges = [q for q in range(width + 1) if [0, *row, 0][q] != [0, *row, 0][q + 1]]
            bars = [(a, b - a) for a, b in zip(edges[::2], edges[1::2], strict=True)]
            if bars:
                axes.broken_barh(bars, (r, 1), facecolors=colour, linewidth=0)
    axes.hlines(range(height + 1), 0, width, colors="#ffffff", linewidth=0.8)
    axes.vlines(range(width + 1), 0, height, colors="#ffffff", linewidth=0.8)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")
    axes.set_title(title, fontsize=10.5, pad=6)


def key(figure: Any, entries: list[tuple[str, str]]) -> None:
    """A legend of coloured squares below the panels."""
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(color=colour, label=label) for colour, label in entries],
        loc="outside lower center",
        ncols=len(entries),
        frameon=False,
        fontsize=9.5,
        handlelength=1,
        handleheight=1,
    )


@torch.no_grad()
def redraw(module: nn.Module, gain: float, seed: int = 0) -> Any:
    """Weights in float64 that are far from the start of training, where every map is near t·x."""
    generator = torch.Generator().manual_seed(seed)
    module.double()
    for name, parameter in module.named_parameters():
        if "raw_t" not in name:
            scale = gain / math.sqrt(parameter[0].numel()) if parameter.dim() > 1 else 0.3
            unit = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(scale * unit)
    return module


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def influence(function: Callable[[Tensor], Tensor], shape: tuple[int, ...], channel: int) -> Tensor:
    """Which inputs the middle pixel of an output channel depends on, by its gradient."""
    x = noise(1, *shape).requires_grad_()
    y = function(x)[0, channel, shape[1] // 2, shape[2] // 2]
    (gradient,) = torch.autograd.grad(y, x)
    return gradient[0] != 0
