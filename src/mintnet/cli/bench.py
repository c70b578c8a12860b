"""`mintnet bench`: how fast things are, measured in one run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

from rich.table import Table

from mintnet.cli.command import Command, Count, Model
from mintnet.cli.output import PLOTS, check_output, console, write_picture


@dataclass(kw_only=True)
class Invert(Command):
    """Compare ways to invert a trained network: time, evaluations, worst residuals."""

    model: Model
    """A run folder, a saved model folder, or the name of a shipped model."""

    count: Count = 64
    """How many samples."""

    seed: int = 0
    """Of the noise that is inverted."""

    repeats: int = 5
    """Timings of each layer, of which the median is taken."""

    step: float | None = None
    """α of Algorithm 1; tuned on the published grid if it is not given."""

    time_limit: float | None = None
    """Seconds that a way may take; what would take longer is extrapolated, and marked."""

    plain: bool = False
    """Without hand-written GPU kernels."""

    quick: bool = False
    """Algorithm 1 as published and auto alone."""

    device: str = "auto"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    out: Path = Path("bench-invert.png")
    """The plot, as .png, .svg or .pdf."""

    def run(self) -> dict[str, Any]:
        from mintnet.bench import bench_invert
        from mintnet.cli.model import open_model
        from mintnet.figures import render
        from mintnet.figures.bench import draw_invert

        check_output(self.out, PLOTS)
        if self.count < 1 or self.repeats < 1:
            raise ValueError(
                f"--count and --repeats are at least 1; got {self.count} and {self.repeats}"
            )
        out, model = console(), open_model(self.model, self.device)
        figures = bench_invert(
            model.flow,
            self.count,
            self.seed,
            self.repeats,
            self.step,
            self.time_limit,
            self.plain,
            self.quick,
            note=lambda line: out.print(line, style="dim"),
        )
        table = Table(title=f"{self.count} samples, {figures['machine']['device']}")
        paper = figures["paper_seconds"] if self.count == 64 else {}
        headings = ["way", "seconds", "speed-up", "evaluations", "per layer", "end to end"]
        for heading in [*headings, *(["paper"] if paper else [])]:
            table.add_column(heading, justify="left" if heading == "way" else "right")
        for name, row in figures["ways"].items():
            end = row["end_to_end_residual"]
            said = [f"{paper[name]:.2f}" if name in paper else "–"] if paper else []
            table.add_row(
                name,
                f"{row['seconds']:.3f}" + ("*" if row["extrapolated"] else ""),
                f"{row['speedup']:.1f}×",
                f"{row['evaluations']:.0f}",
                "–" if isnan(row["worst_residual"]) else f"{row['worst_residual']:.1e}",
                "–" if end is None else f"{end:.1e}",
                *said,
            )
        out.print(table)
        out.print(
            "per layer, end to end: the worst residual as a share of the largest |z|, of all "
            "layers one by one and of the whole way back; inf where it diverges"
        )
        if any(row["extrapolated"] for row in figures["ways"].values()):
            out.print("* extrapolated from one layer of each stage")
        if paper:
            out.print("The paper's seconds are those of a TITAN Xp")
        ratio = figures["auto_over_faster_of_two"]
        if ratio is not None:
            out.print(f"auto takes {ratio:.2f} times the sum of the faster solver of each layer")
        picture = render(partial(draw_invert, figures=figures), kind=self.out.suffix.lower()[1:])
        out.print(write_picture(picture, self.out)[1])
        return figures


@dataclass(kw_only=True)
class Growth(Command):
    """Time the wavefront over sizes 8 to 128 and batches 1 to 256."""

    filters: int = 16
    """K of the Mint layer."""

    device: str = "cpu"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    out: Path = Path("bench-growth.png")
    """The plot, as .png, .svg or .pdf."""

    def run(self) -> dict[str, Any]:
        from mintnet.bench import bench_growth
        from mintnet.cli.model import pick_device
        from mintnet.figures import render
        from mintnet.figures.bench import draw_growth

        check_output(self.out, PLOTS)
        out, device = console(), pick_device(self.device)
        figures = bench_growth(self.filters, device, note=lambda line: out.print(line))
        picture = render(partial(draw_growth, figures=figures), kind=self.out.suffix.lower()[1:])
        out.print(write_picture(picture, self.out)[1])
        return figures


@dataclass(kw_only=True)
class Properties(Command):
    """Find the properties of each family of flows by checks, and compare with the paper's table."""

    evidence: bool = False
    """Print what each check found."""

    def run(self) -> dict[str, Any]:
        from mintnet.bench import bench_properties
        from mintnet.bench.properties import PROPERTIES

        out = console()
        figures = bench_properties(note=lambda line: out.print(line, style="dim"))
        table = Table("model", *PROPERTIES)
        for name, row in figures["models"].items():
            cells = ("yes" if row[title]["holds"] else "no" for title in PROPERTIES)
            if self.evidence:
                cells = (
                    f"{cell}: {row[t]['evidence']}"
                    for cell, t in zip(cells, PROPERTIES, strict=True)
                )
            table.add_row(name, *cells)
        out.print(table)
        for line in figures["differences"]:
            out.print(f"differs: {line}")
        return figures
