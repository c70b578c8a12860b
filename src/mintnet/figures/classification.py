"""Pictures of how a classifier does: confusion, reliability, the most confident mistakes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from mintnet.figures.style import LIGHT, Theme, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mintnet.training import Accuracy, Calibration


def draw_confusion(
    axes: Axes, theme: Theme, confusion: Tensor, names: tuple[str, ...] = ()
) -> None:
    """Draw how many images of each true class (row) were called what (column).

    Shades are of mistakes alone; what is right would outshine them.
    """
    counts = confusion.numpy()
    names = names or tuple(map(str, range(len(counts))))
    wrong = counts.astype(float) - np.diag(np.diag(counts))
    most = wrong.max() or 1.0
    axes.imshow(np.zeros((*counts.shape, 4)))
    for row, column in np.ndindex(counts.shape):
        count, right = int(counts[row, column]), row == column
        colour = theme.colours[0] if right else theme.colours[1]
        strength = 0.16 if right else 0.75 * wrong[row, column] / most
        axes.add_patch(_square(column, row, colour, strength))
        if count:
            axes.text(column, row, str(count), ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=60 if len(names[0]) > 2 else 0)
    axes.set_yticks(range(len(names)), names)
    axes.grid(False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true class")
    axes.set_title("Confusion")


def draw_reliability(axes: Axes, theme: Theme, found: Calibration) -> None:
    """Draw the share that is right against what was said, with the line where they agree."""
    bins = len(found.counts)
    full = found.counts > 0
    width = 1 / bins
    centres = (np.arange(bins) + 0.5) * width
    shares = (found.counts / found.counts.sum()).numpy()
    axes.bar(
        centres[full],
        found.accuracy[full].numpy(),
        width * 0.92,
        color=[(theme.colours[0], 0.25 + 0.75 * float(s) ** 0.25) for s in shares[full]],
    )
    axes.plot([0, 1], [0, 1], color=theme.quiet, linewidth=1, linestyle="--")
    axes.plot(
        found.confidence[full].numpy(),
        found.accuracy[full].numpy(),
        "o",
        color=theme.colours[1],
        markersize=4,
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("probability of the predicted class")
    axes.set_ylabel("share that is right")
    axes.set_title(f"Reliability (calibration error {100 * found.error:.2f} %)")


def evaluation_picture(
    found: Accuracy,
    images: Tensor,
    levels: int,
    names: tuple[str, ...],
    title: str,
    mistakes: int = 24,
    theme: Theme = LIGHT,
) -> bytes:
    """One PNG: confusion, reliability, and the most confident mistakes with what was said.

    Args:
        found: the evaluation.
        images: (N, C, H, W) uint8, all of them.
        levels: number of grey levels.
        names: of the classes.
        title: over it all.
        mistakes: how many to show.
        theme: its colours.
    """
    places = found.mistakes(mistakes)
    columns = 8
    rows = max(1, -(-len(places) // columns))
    with styled_figure(theme, (12.0, 5.2 + 1.75 * rows)) as figure:
        parts: Any = figure.subfigures(2, 1, height_ratios=(5.2, 1.75 * rows))
        upper, lower = parts
        upper.suptitle(title, x=0.01, ha="left", fontsize=13, color=theme.ink)
        left, right = upper.subplots(1, 2, width_ratios=(1.15, 1))
        draw_confusion(left, theme, found.confusion, names)
        draw_reliability(right, theme, found.calibration)
        _draw_mistakes(lower, theme, found, images, levels, names, places, rows, columns)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110, facecolor=theme.paper or "none")
    return buffer.getvalue()


def _draw_mistakes(
    part: Any,
    theme: Theme,
    found: Accuracy,
    images: Tensor,
    levels: int,
    names: tuple[str, ...],
    places: Tensor,
    rows: int,
    columns: int,
) -> None:
    words = "The most confident mistakes" if len(places) else "No mistakes at all"
    part.suptitle(words, x=0.01, ha="left", fontsize=12, color=theme.ink)
    for number, axes in enumerate(part.subplots(rows, columns, squeeze=False).flat):
        axes.axis("off")
        if number >= len(places):
            continue
        place = int(places[number])
        show_image(axes, images[place], levels)
        said, true = int(found.predictions[place]), int(found.labels[place])
        axes.set_title(
            f"{names[said]}, {100 * float(found.confidence[place]):.1f} %\ntruth: {names[true]}",
            fontsize=8.5,
            loc="center",
            pad=3,
        )


def show_image(axes: Any, image: Tensor, levels: int) -> None:
    """An image (C, H, W) of 0 … levels − 1 on axes, its pixels as squares."""
    pixels = image.cpu().double().numpy().transpose(1, 2, 0) / (levels - 1)
    if pixels.shape[2] not in (1, 3):
        raise ValueError(f"expected an image of one channel or three; got {pixels.shape[2]}")
    axes.imshow(
        pixels if pixels.shape[2] == 3 else pixels[:, :, 0],
        cmap="gray",
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )


def _square(column: int, row: int, colour: str, strength: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, color=colour, alpha=strength, linewidth=0)
