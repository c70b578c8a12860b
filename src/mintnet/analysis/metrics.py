"""The metrics of a run, as its folder holds them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any


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
    path, rows = Path(run) / "metrics.jsonl", []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int | float):
            rows.append(row)
    return rows


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


def sample_pictures(run: Path, most: int = 4) -> list[tuple[str, bytes]]:
    """Captions and PNG files of some grids that a run has drawn, from its first to its last."""
    files = sorted((run / "samples").glob("step_*.png"))
    if len(files) > most:
        files = [files[round(k * (len(files) - 1) / (most - 1))] for k in range(most)]
    return [
        (f"step {file.stem.removeprefix('step_').lstrip('0') or 0}", file.read_bytes())
        for file in files
    ]
