"""How a run went: bits per dimension, or mistakes, over its steps."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mintnet.figures.style import Theme, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILES = ("metrics.jsonl", "metrics.csv")


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics: ``kind`` (train or validation), ``step`` and figures.

    A row that cannot be read, as the last one of a killed run, is passed over.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run:
        ...     _ = Path(run, "metrics.jsonl").write_text('{"kind": "train", "step": 5, "bpd": 2}')
        ...     read_metrics(run)
        [{'kind': 'train', 'step': 5, 'bpd': 2}]
        >>> read_metrics("nowhere")
        []
    """
    path = next((Path(run) / name for name in FILES if (Path(run) / name).is_file()), None)
    if path is None:
        return []
    text = path.read_text(errors="replace")
    rows = _json_rows(text) if path.suffix == ".jsonl" else _csv_rows(text)
    return [row for row in rows if isinstance(row.get("step"), int | float)]


def series(
    rows: Sequence[dict[str, Any]], kind: str, figure: str = "bpd"
) -> tuple[list[float], list[float]]:
    """Steps and values of one figure, where it is a finite number.

    Examples:
        >>> rows = [{"kind": "train", "step": 5, "bpd": 2.0}, {"kind": "train", "step": 6}]
        >>> series(rows, "train")
        ([5.0], [2.0])
    """
    points = [
        (float(row["step"]), float(row[figure]))
        for row in rows
        if row.get("kind") == kind
        and isinstance(row.get(figure), int | float)
        and math.isfinite(row[figure])
    ]
    return [step for step, _ in points], [value for _, value in points]


def draw_curves(
    axes: Axes,
    theme: Theme,
    rows: Sequence[dict[str, Any]],
    figure: str = "bpd",
    label: str = "bits per dimension",
) -> None:
    """Draw a figure in training and validation; the first steep fall is cut off."""
    shown: list[float] = []
    for (kind, name), colour in zip(
        (("train", "training"), ("validation", "held-out images")), theme.colours, strict=False
    ):
        steps, values = series(rows, kind, figure)
        if steps:
            thin = kind == "train"
            style = "-" if thin or len(steps) > 40 else "o-"
            axes.plot(steps, values, style, color=colour, label=name, markersize=4)
            shown += values[len(values) // 20 :]
    if shown:
        low, high = min(shown), max(shown)
        room = 0.06 * (high - low) or 0.1
        axes.set_ylim(low - room, high + room)
    axes.set_xlim(left=0)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    if shown:
        legend(axes, theme)


def _json_rows(text: str) -> list[dict[str, Any]]:
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _csv_rows(text: str) -> list[dict[str, Any]]:
    rows = []
    for row in csv.DictReader(text.splitlines()):
        cells = {name: _number(cell) for name, cell in row.items() if name and cell}
        rows.append({"kind": cells.pop("split", "train"), **cells})
    return rows


def _number(cell: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
