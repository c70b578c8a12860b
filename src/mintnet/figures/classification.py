"""Pictures about a classifier: how it does on test images, and what it sees in one of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from mintnet.analysis.explain import Path, Shown
from mintnet.figures.style import LIGHT, saved, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mintnet.training import Accuracy, Calibration

COLUMNS = 8


def evaluation_picture(
    found: "Accuracy", images: Tensor, levels: int, names: tuple[str, ...], title: str
) -> bytes:
    """One PNG: confusion, reliability, and the 24 most confident mistakes with what was said."""
    places = found.mistakes(3 * COLUMNS)
    rows = max(1, -(-len(places) // COLUMNS))
    with styled_figure(LIGHT, (12.0, 5.2 + 1.75 * rows)) as figure:
        parts: Any = figure.subfigures(2, 1, height_ratios=(5.2, 1.75 * rows))
        upper, lower = parts
        upper.suptitle(title, x=0.01, ha="left", fontsize=13)
        left, right = upper.subplots(1, 2, width_ratios=(1.15, 1))
        _draw_confusion(left, found.confusion, names)
        _draw_reliability(right, found.calibration)
        words = "The most confident mistakes" if len(places) else "No mistakes at all"
        lower.suptitle(words, x=0.01, ha="left", fontsize=12)
        cells = list(lower.subplots(rows, COLUMNS, squeeze=False).flat)
        for axes in cells:
            axes.axis("off")
        for axes, place in zip(cells, places.tolist(), strict=False):
            said, true = names[int(found.predictions[place])], names[int(found.labels[place])]
            words = f"{said}, {100 * float(found.confidence[place]):.1f} %\ntruth: {true}"
            _show_image(axes, images[place], levels, words)
        return saved(figure)


def _draw_confusion(axes: "Axes", confusion: Tensor, names: tuple[str, ...]) -> None:
    """Draw how many images of each true class (row) were called what (column); shades: mistakes."""
    counts = confusion.numpy()
    wrong = counts - np.diag(np.diag(counts))
    shade = np.where(np.eye(len(counts), dtype=bool), 0.16, 0.75 * wrong / max(1, wrong.max()))
    axes.imshow(np.zeros((*counts.shape, 4)))
    for row, column in np.ndindex(counts.shape):
        colour = LIGHT.colours[0 if row == column else 1]
        x, y = (column - 0.5, column + 0.5), (row - 0.5, row + 0.5)
        axes.fill_between(x, *y, color=colour, alpha=shade[row, column], linewidth=0)
        if counts[row, column]:
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=60 if len(names[0]) > 2 else 0)
    axes.set_yticks(range(len(names)), names)
    axes.grid(False)
    axes.set(xlabel="predicted", ylabel="true class", title="Confusion")


def _draw_reliability(axes: "Axes", found: "Calibration") -> None:
    """Draw the share that is right against what was said, with the line where they agree."""
    full, width = found.counts > 0, 1 / len(found.counts)
    centres = (np.arange(len(found.counts)) + 0.5) * width
    shares = (found.counts / found.counts.sum())[full].tolist()
    right = found.accuracy[full].numpy()
    shades = [(LIGHT.colours[0], 0.25 + 0.75 * share**0.25) for share in shares]
    axes.bar(centres[full], right, width * 0.92, color=shades)
    axes.plot([0, 1], [0, 1], color=LIGHT.quiet, linewidth=1, linestyle="--")
    axes.plot(found.confidence[full].numpy(), right, "o", color=LIGHT.colours[1], markersize=4)
    title = f"Reliability (calibration error {100 * found.error:.2f} %)"
    axes.set(xlim=(0, 1), ylim=(0, 1.02), title=title)
    axes.set(xlabel="probability of the predicted class", ylabel="share that is right")


def explanation_picture(
    paths: Sequence[Path], levels: int, names: tuple[str, ...], title: str
) -> bytes:
    """A PNG with one row for each path of one picture, each with its figures below."""
    columns = max(len(path.steps) for path in paths) + 2
    with styled_figure(LIGHT, (1.55 * columns, 2.55 * len(paths) + 0.5)) as figure:
        parts: Any = figure.subfigures(len(paths), 1, squeeze=False)
        figure.suptitle(title, x=0.01, ha="left", fontsize=13)
        for part, path in zip(parts.flat, paths, strict=True):
            part.suptitle(f"{path.title}: {path.note}", x=0.01, ha="left", fontsize=8.5)
            axes = part.subplots(1, columns, squeeze=False)[0]
            for place in axes:
                place.set(xticks=[], yticks=[], frame_on=False)
                place.grid(False)
            for place, step in zip(axes, (path.start, *path.steps), strict=False):
                _draw_step(place, step, path.start, levels, names)
            if path.goal is not None:
                _show_image(axes[-1], path.goal, levels, "the other picture")
        return saved(figure, bbox_inches="tight", pad_inches=0.1)


def _draw_step(axes: Any, step: Shown, start: Shown, levels: int, names: tuple[str, ...]) -> None:
    """A picture, its class above; below, how far it moved and what the logits did."""
    if not step.verified:
        axes.text(0.5, 0.5, "not verified,\nnot shown", ha="center", fontsize=8)
        return
    colour = LIGHT.ink if step.predicted == start.predicted else LIGHT.colours[1]
    words = f"{names[step.predicted]}, {100 * step.probability:.1f} %"
    _show_image(axes, step.image, levels, words, color=colour)
    if step is not start:
        changed = float((step.logits - start.logits).abs().max())
        words = f"pixels {100 * step.moved:.1f} %\nlogits {changed:.2g}"
        axes.set_xlabel(words, fontsize=7, linespacing=1.25, labelpad=3)


def _show_image(axes: Any, image: Tensor, levels: int, title: str, **options: Any) -> None:
    """An image (C, H, W) of 0 … levels − 1 on axes, its pixels as squares, words above."""
    pixels = image.cpu().double().numpy().transpose(1, 2, 0) / (levels - 1)
    if pixels.shape[2] not in (1, 3):
        raise ValueError(f"expected an image of one channel or three; got {pixels.shape[2]}")
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    axes.imshow(pixels, vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(title, fontsize=8.5, loc="center", pad=3, **options)
