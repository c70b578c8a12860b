"""Plots of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from mintnet.figures.style import Theme, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_invert(axes: Axes, theme: Theme, figures: dict[str, Any]) -> None:
    """Seconds of each way to invert a network, with its worst residual beside it."""
    ways = list(figures["ways"].items())[::-1]
    times = [row["seconds"] for _, row in ways]
    _points(axes, theme, times, [theme.colours[0]] * len(ways), [name for name, _ in ways])
    for place, (_, row) in enumerate(ways):
        mark = ", extrapolated" if row["extrapolated"] else ""
        known = "" if isnan(row["worst_residual"]) else f", residual {row['worst_residual']:.0e}"
        text = f"  {row['seconds']:.3g} s{known}{mark}"
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


def draw_train(axes: Axes, theme: Theme, figures: dict[str, Any]) -> None:
    """Images a second of each way to train, at each batch size; what did not fit says so."""
    rows = figures["rows"][::-1]
    batches = list(dict.fromkeys(row["batch"] for row in figures["rows"]))
    rates = [row.get("images_per_second", 0.0) for row in rows]
    colours = [theme.colours[batches.index(row["batch"]) % len(theme.colours)] for row in rows]
    least = min((rate for rate in rates if rate > 0), default=1.0)
    names = [f"{row['way']}, batch {row['batch']}" for row in rows]
    _points(axes, theme, [rate or nan for rate in rates], colours, names)
    for place, (row, rate) in enumerate(zip(rows, rates, strict=True)):
        words = row.get("failure") or _rate(rate) + _memory(row)
        axes.text(rate or least, place, f"  {words}", va="center", color=theme.ink, fontsize=8)
    axes.set_xlabel(
        f"images a second in training {figures.get('preset', '')}\n{figures['machine']['device']}"
    )


def draw_train_sweep(axes: Axes, theme: Theme, figures: dict[str, Any]) -> None:
    """Milliseconds of a step against the pixels in it, over batch sizes and over image sizes."""
    for name, what, colour in zip(
        ("over_batch", "over_size"), ("batch", "size"), theme.colours, strict=False
    ):
        rows = [row for row in figures[name] if "failure" not in row]
        if not rows:
            continue
        fixed = f"{rows[0]['size']} × {rows[0]['size']}"
        if what == "size":
            fixed = f"batch {rows[0]['batch']}"
        label = f"{what} {rows[0][what]} to {rows[-1][what]}, {fixed}"
        pixels = [row["size"] ** 2 * row["batch"] for row in rows]
        times = [row["milliseconds"] for row in rows]
        axes.loglog(pixels, times, "o-", color=colour, label=label)
        line = [times[-1] * count / pixels[-1] for count in pixels]
        axes.loglog(pixels, line, "--", color=theme.quiet, linewidth=1)
    axes.set_xlabel(f"pixels × images; dashed: linear ({figures['sweep_way']})")
    axes.set_ylabel(figures.get("measure", "milliseconds a step"))
    legend(axes, theme)


def draw_sample_sweep(axes: Axes, theme: Theme, figures: dict[str, Any]) -> None:
    """Milliseconds of a call that samples against the pixels in it, over numbers and sizes."""

    def rows(name: str) -> list[dict[str, Any]]:
        return [
            {
                "batch": row["count"],
                "size": row.get("size", figures["size"]),
                "milliseconds": 1e3 * row["seconds"],
            }
            for row in figures[name]
        ]

    converted = {
        "over_batch": rows("rows"),
        "over_size": rows("over_size"),
        "sweep_way": "certified samples, later calls",
        "measure": "milliseconds a call",
    }
    draw_train_sweep(axes, theme, converted)


def draw_sample(axes: Axes, theme: Theme, figures: dict[str, Any]) -> None:
    """Seconds for samples: the first call, later calls, and Algorithm 1 as published."""
    bars: list[tuple[str, float, str]] = []
    for row in figures["rows"]:
        count, other = row["count"], row.get("published", {})
        what = "1 sample" if count == 1 else f"{count} samples"
        bars.append((f"{what}, first call", row["first_seconds"], theme.colours[1]))
        slowest = max(row["learning_seconds"])
        bars.append((f"{what}, slowest of the next", slowest, theme.colours[1]))
        bars.append((f"{what}, later calls", row["seconds"], theme.colours[0]))
        if "seconds" in other:
            bars.append((f"{what}, Algorithm 1", other["seconds"], theme.colours[3]))
    bars.reverse()
    times = [taken for _, taken, _ in bars]
    _points(axes, theme, times, [colour for _, _, colour in bars], [name for name, _, _ in bars])
    for place, taken in enumerate(times):
        axes.text(taken, place, f"  {taken:.3g} s", va="center", color=theme.ink, fontsize=8)
    axes.set_xlabel(f"seconds, {figures['machine']['device']}")


def _memory(row: dict[str, Any]) -> str:
    memory = row["peak_memory_gib"]
    return "" if memory is None else f" ({memory:.2f} GiB)"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _points(
    axes: Axes, theme: Theme, values: Sequence[float], colours: Sequence[str], names: Sequence[str]
) -> None:
    """Values on a logarithmic axis, a line each; bars would need a place to begin at."""
    places = range(len(values))
    axes.scatter(values, places, c=list(colours), s=36, zorder=3)
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter("")  # between powers of ten they would lie on each other
    known = [value for value in values if value == value]
    axes.set_xlim(min(known, default=1.0) / 1.5, max(known, default=1.0) * 12)  # room for words
    axes.set_yticks(places, list(names))
    axes.set_ylim(-0.6, len(values) - 0.4)
    axes.grid(visible=False)
    left = axes.get_xlim()[0]
    axes.hlines(places, left, list(values), color=theme.quiet, alpha=0.3, linewidth=1)
