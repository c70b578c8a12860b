"""Plots of measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mintnet.figures.style import Theme, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_invert(axes: Axes, theme: Theme, figures: dict[str, Any]) -> None:
    """Seconds of each way to invert a network, with its worst residual beside it."""
    ways = list(figures["ways"].items())[::-1]
    times = [row["seconds"] for _, row in ways]
    axes.barh(range(len(ways)), times, color=theme.colours[0])
    axes.set_yticks(range(len(ways)), [name for name, _ in ways])
    axes.set_xscale("log")
    axes.set_xlim(right=max(times) * 30)
    for place, (_, row) in enumerate(ways):
        mark = ", extrapolated" if row["extrapolated"] else ""
        text = f" {row['seconds']:.3g} s, residual {row['worst_residual']:.0e}{mark}"
        axes.text(row["seconds"], place, text, va="center", color=theme.ink, fontsize=8)
    axes.set_xlabel(f"seconds for {figures['samples']} samples, {figures['machine']['device']}")


def draw_growth(axes: Axes, theme: Theme, figures: dict[str, Any]) -> None:
    """Seconds of the wavefront against the number of entries that it solves."""
    for (name, label), colour in zip(
        (
            ("over_size", "sizes 8 to 128, batch 8"),
            ("over_batch", "batches 1 to 256, 16 × 16"),
        ),
        theme.colours,
        strict=False,
    ):
        rows = figures[name]
        entries = [row["size"] ** 2 * row["batch"] for row in rows]
        axes.loglog(entries, [row["seconds"] for row in rows], "o-", color=colour, label=label)
    top = figures["over_size"][-1]
    reference = [row["size"] ** 2 * row["batch"] for row in figures["over_size"]]
    line = [top["seconds"] * count / reference[-1] for count in reference]
    axes.loglog(reference, line, "--", color=theme.quiet, label="linear")
    axes.set_xlabel("pixels × samples")
    axes.set_ylabel("seconds")
    legend(axes, theme)
