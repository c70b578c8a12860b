"""The picture of an explanation: paths of pictures, each with its figures below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mintnet.analysis.explain import Path, Shown
from mintnet.figures.classification import show_image
from mintnet.figures.style import LIGHT, Theme, styled_figure


def explanation_picture(
    paths: Sequence[Path],
    levels: int,
    names: tuple[str, ...],
    title: str,
    partner: Tensor | None = None,
    theme: Theme = LIGHT,
) -> bytes:
    """A PNG with one row for each path.

    Args:
        paths: of one picture; the first has a single step, the picture mapped back.
        levels: number of grey levels.
        names: of the classes.
        title: over it all.
        partner: the picture that paths lead to, shown at the right end of those that have one.
        theme: its colours.
    """
    columns = max(len(path.steps) for path in paths) + 2
    height = 2.55
    with styled_figure(theme, (1.55 * columns, height * len(paths) + 0.5)) as figure:
        parts: Any = figure.subfigures(len(paths), 1, squeeze=False)
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=theme.ink)
        for part, path in zip(parts.flat, paths, strict=True):
            part.suptitle(
                f"{path.title}: {path.note}", x=0.01, ha="left", fontsize=8.5, color=theme.ink
            )
            axes = part.subplots(1, columns, squeeze=False)[0]
            _draw_path(axes, theme, path, levels, names, partner)
        buffer = io.BytesIO()
        figure.savefig(
            buffer,
            format="png",
            dpi=110,
            facecolor=theme.paper or "none",
            bbox_inches="tight",
            pad_inches=0.1,
        )
    return buffer.getvalue()


def _draw_path(
    axes: Any,
    theme: Theme,
    path: Path,
    levels: int,
    names: tuple[str, ...],
    partner: Tensor | None,
) -> None:
    for place in axes:
        place.set(xticks=[], yticks=[], frame_on=False)
        place.grid(False)
    show_image(axes[0], path.start.image, levels)
    _caption(axes[0], theme, path.start, path.start, names)
    for place, step in zip(axes[1:], path.steps, strict=False):
        if step.verified:
            show_image(place, step.image, levels)
            _caption(place, theme, step, path.start, names)
        else:
            place.text(0.5, 0.5, "not verified,\nnot shown", ha="center", fontsize=8)
    if partner is not None and path.has_goal:
        show_image(axes[-1], partner, levels)
        axes[-1].set_title("the other picture", fontsize=8, loc="center", pad=3)


def _caption(axes: Any, theme: Theme, step: Shown, start: Shown, names: tuple[str, ...]) -> None:
    """The prediction above; below, how far the picture moved and what the logits did."""
    changed = step.predicted != start.predicted
    axes.set_title(
        f"{names[step.predicted]}, {_percent(step.probability)}",
        fontsize=8.5,
        loc="center",
        pad=3,
        color=theme.colours[1] if changed else theme.ink,
    )
    if step is start:
        return
    change = float((step.logits - start.logits).abs().max())
    words = (
        f"pixels {_percent(step.moved)}\nlogits {change:.2g}\nclipped {_percent(step.clipped)}\n"
        f"padding {step.padding_energy:.0e}"
    )
    axes.set_xlabel(words, fontsize=7, color=theme.quiet, linespacing=1.25, labelpad=3)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
