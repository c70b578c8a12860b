"""`mintnet bench sample`: certified samples against Algorithm 1 as it was published."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from mintnet.cli.bench import with_origin
from mintnet.cli.command import Command, Count, Model
from mintnet.cli.output import PLOTS, check_output, console, write_picture

COLUMNS = ("n", "way", "seconds", "speed-up", "evaluations", "certified", "residual", "GiB")


@dataclass(kw_only=True)
class BenchSample(Command):
    """Time certified samples, first and later calls, against Algorithm 1 as published."""

    model: Model
    """A run folder, a saved model folder, or the name of a shipped model."""

    count: Count = 64
    """How many samples."""

    sweep: bool = False
    """Measure 1, 16, 64 and 256 samples instead of one number of them."""

    seed: int = 0
    """Of the noise of the first call; each call has other noise."""

    repeats: int = 5
    """Later calls, of which the median is taken."""

    step: float | None = None
    """α of Algorithm 1; tuned on the published grid if it is not given."""

    device: str = "auto"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    out: Path = Path("bench-sample.png")
    """The plot, as .png, .svg or .pdf."""

    def run(self) -> dict[str, Any]:
        from mintnet.bench import bench_sample
        from mintnet.bench.sample import COUNTS
        from mintnet.cli.model import open_model
        from mintnet.figures import render
        from mintnet.figures.bench import draw_sample

        check_output(self.out, PLOTS)
        out, model = console(), open_model(self.model, self.device)
        figures = bench_sample(
            model.flow,
            COUNTS if self.sweep else (self.count,),
            self.seed,
            self.repeats,
            self.step,
            note=lambda line: out.print(line, style="dim"),
        )
        table = Table(
            title=f"{model.label}, true float32, {figures['machine']['device']}",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_edge=False,
        )
        for heading in COLUMNS:
            table.add_column(heading, justify="left" if heading == "way" else "right")
        for row in figures["rows"]:
            count, other = str(row["count"]), row["published"]
            speedup = f"{row['speedup']:.1f}×" if "speedup" in row else "–"
            table.add_row(count, "ours, first call", f"{row['first_seconds']:.3f}")
            table.add_row(count, "ours, later calls", *_cells(row, speedup, str(row["certified"])))
            if "failure" in other:
                table.add_row(count, f"Algorithm 1: {other['failure']}")
            else:
                table.add_row(count, "Algorithm 1", *_cells(other, "", "none"))
        out.print(table)
        out.print(
            f"Algorithm 1: 120 steps of α = 1/{1 / figures['tuned_step']:g} in each layer, with "
            f"Eq. 2 and Eq. 3 written out, the sums of Eq. 3 in turn, and no check. Residuals are "
            f"end to end, the worst of all samples."
        )
        kind = self.out.suffix.lower()[1:]
        picture = render(partial(draw_sample, figures=figures), kind=kind)
        out.print(write_picture(picture, self.out)[1])
        return with_origin(self, figures)


def _cells(row: dict[str, Any], speedup: str, certified: str) -> tuple[str, ...]:
    memory = row["peak_memory_gib"]
    return (
        f"{row['seconds']:.3f}",
        speedup,
        f"{row['evaluations']:.0f}",
        certified,
        f"{row['worst_residual']:.1e}",
        "–" if memory is None else f"{memory:.2f}",
    )
