"""The table of `mintnet bench invert`."""

from __future__ import annotations

import json

from figures_src.parts import ROOT, Facts

BENCH = ROOT / "results" / "inversion" / "invert-mnist-cpu.json"


def bench_rows() -> Facts:
    """The table of `mintnet bench invert`, as the page quotes it."""
    if not BENCH.is_file():
        return []
    figures = json.loads(BENCH.read_text())
    rows = []
    for name, row in figures["ways"].items():
        if not row["extrapolated"]:
            rows.append(
                f"| {name} | {row['seconds']:.1f} s | {row['evaluations']:.0f} "
                f"| {row['not_certified']} | {_small(row['worst_residual'])} "
                f"| {_small(row['end_to_end_residual'])} |"
            )
    return [
        f"step of the 120: {figures['tuned_step']:.3f}, {figures['machine']['threads']} threads",
        *rows,
    ]


def _small(residual: float | str | None) -> str:
    """JSON has no infinite numbers: "inf" stands for one, and None for one not measured."""
    if residual is None:
        return "–"
    return "∞" if residual == "inf" else f"{float(residual):.0e}"
