"""`mintnet bench sample`: certified samples against Algorithm 1 as it was published."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from mintnet.cli.command import Command, Count, Model
from mintnet.cli.output import PLOTS, check_output, console, write_picture

WRONG = 1e-2
"""An end-to-end residual above which samples are not those of the noise that was drawn."""
COLUMNS = (
    *("n", "way", "s", "images/s", "×", "evals", "GFLOP/s", "product", "copy"),
    *("ok", "residual", "GiB"),
)


@dataclass(kw_only=True)
class BenchSample(Command):
    """Time certified samples, first and later calls, against Algorithm 1 as published."""

    model: Model
    """A run folder, a saved model folder, or the name of a shipped model."""

    count: Count = 64
    """How many samples."""

    sweep: bool = False
    """Measure 1, 16, 64 and 256 samples, and the same weights on images of 8 × 8 to 64 × 64."""

    seed: int = 0
    """Of the noise of the first call; each call has other noise."""

    repeats: int = 5
    """Later calls, of which the median is taken."""

    step: float | None = None
    """α of Algorithm 1; tuned on the published grid if it is not given."""

    device: str = "auto"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    out: Path = Path("bench-sample.png")
    """The plot, as .png, .svg or .pdf; with --sweep a second one beside it."""

    def run(self) -> dict[str, Any]:
        from mintnet.bench import bench_sample
        from mintnet.bench.sample import COUNTS, SIZES
        from mintnet.cli.model import open_model
        from mintnet.figures import render
        from mintnet.figures.bench import draw_sample, draw_sample_sweep

        check_output(self.out, PLOTS)
        out, model = console(), open_model(self.model, self.device)
        figures = bench_sample(
            model.flow,
            COUNTS if self.sweep else (self.count,),
            self.seed,
            self.repeats,
            self.step,
            sizes=SIZES if self.sweep else (),
            note=lambda line: out.print(line, style="dim"),
        )
        table = Table(
            title=f"{model.label}, true float32, {figures['machine']['device']}",
            box=None,  # twelve columns in 80 characters
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for heading in COLUMNS:
            left = heading == "way"
            table.add_column(heading, justify="left" if left else "right", no_wrap=True)
        for row in figures["rows"]:
            count, other = str(row["count"]), row["published"]
            speedup = f"{row['speedup']:.1f}×" if "speedup" in row else "–"
            table.add_row(count, "ours, first", f"{row['first_seconds']:.3g}")
            table.add_row(count, "ours, next", f"{max(row['learning_seconds']):.3g}")
            table.add_row(count, "ours", *_cells(row, speedup, str(row["certified"])))
            if "failure" in other:
                table.add_row(count, f"Algorithm 1: {other['failure']}")
            else:
                table.add_row(count, "Algorithm 1", *_cells(other, "", "–"))
        for row in figures["over_size"]:
            way = f"ours, {row['size']}²"
            table.add_row(str(row["count"]), way, *_cells(row, "–", str(row["certified"])))
        out.print(table)
        out.print(
            f"next: the slowest of three more calls, in which routes are tried. "
            f"Algorithm 1: 120 steps of α = 1/{1 / figures['tuned_step']:g} in each layer, with "
            f"Eq. 2 and Eq. 3 written out, the sums of Eq. 3 in turn, and no check. Residuals are "
            f"end to end, the worst of all samples; ok: how many are certified; evals: of layers; "
            f"product, copy: shares of what a large matrix product and a large copy reached, the "
            f"copy for what evaluations move at least."
        )
        for line in _doubts(figures):
            out.print(line, style="yellow")
        kind = self.out.suffix.lower()[1:]
        picture = render(partial(draw_sample, figures=figures), kind=kind)
        out.print(write_picture(picture, self.out)[1])
        if self.sweep:
            second = self.out.with_stem(f"{self.out.stem}-sweep")
            picture = render(partial(draw_sample_sweep, figures=figures), kind=kind)
            out.print(write_picture(picture, second)[1])
        return figures


def _doubts(figures: dict[str, Any]) -> list[str]:
    """Where Algorithm 1 did not arrive, which its time does not show."""
    return [
        f"Algorithm 1 did not invert {row['count']} samples: its worst residual is {worst:.0e} "
        f"with this step; 120 steps take the same time with any; --step tries another"
        for row in figures["rows"]
        if not (worst := row["published"].get("worst_residual", 0.0)) <= WRONG
    ]


def _cells(row: dict[str, Any], speedup: str, certified: str) -> tuple[str, ...]:
    memory = row["peak_memory_gib"]
    return (
        f"{row['seconds']:.3g}",
        _short(row["images_per_second"]),
        speedup,
        f"{row['evaluations']:.0f}",
        _short(1e3 * row["tflops_unmasked"]),
        f"{row['share_of_matrix_product']:.0%}",
        f"{row['share_of_copy']:.0%}",
        certified,
        f"{row['worst_residual']:.0e}",
        "–" if memory is None else f"{memory:.2f}",
    )


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"
