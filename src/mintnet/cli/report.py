"""`mintnet report`: one page about a model."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from mintnet.analysis import Overview, overview
from mintnet.analysis.layers import kind_of
from mintnet.cli.command import DataCommand, File, check_positive
from mintnet.cli.model import OpenModel
from mintnet.cli.output import Tasks, console, output_place, write
from mintnet.figures import build_page
from mintnet.schema import read_json


@dataclass(kw_only=True)
class Report(DataCommand):
    """Write one self-contained HTML page about a run or a model: everything there is to see."""

    out: File = None
    """The page; report.html in the run or model folder if not given."""
    samples: int = 64
    """Images to draw."""
    seed: int = 0
    """Of everything that is drawn."""

    then = "open {report} in a browser"

    def run(self) -> dict[str, Any]:
        check_positive(samples=self.samples)
        out, model = console(), self.open()
        path = output_place(self.out or default_place(model), "")
        return write_page(out, path, self.collect(out, model))

    def collect(self, out: Console, model: OpenModel) -> Overview:
        """Everything for the page."""
        data, solver = self.images(model), self.chosen_solver()
        title = f"{model.label}: {kind_of(model.model)} for {data.name}"
        with Tasks(out) as task:
            found = overview(
                model.model, data, title, model.run, self.samples, self.seed, solver, stage=task
            )
        part = f"the {self.split} part of {data.name}, {len(data):,} of them"
        found.subtitle = f"Weights: {model.folder}; images: {part}."
        found.configuration = {"model": model.config}
        with suppress(OSError, ValueError, TypeError):  # a model need not be of a run
            found.configuration["run"] = read_json(Path(model.run, "run.json"), dict)  # type: ignore[arg-type]
        return found


def write_page(out: Console, path: Path, found: Overview) -> dict[str, Any]:
    """Write the page and say where it is."""
    page = build_page(found).encode()
    for item in found.headlines:
        note = f"  [dim]{escape(item.note)}[/]" if item.note else ""
        out.print(f"{item.value:>12}  {item.label}{note}")
    return {"report": write(out, path, page), **found.to_dict()}


def default_place(model: OpenModel) -> Path:
    """report.html in the run or model folder, or here where that cannot be written."""
    folder = model.run or model.folder
    mine = Path(model.name).expanduser().exists() and os.access(folder, os.W_OK)
    return folder / "report.html" if mine else Path(f"{model.label}-report.html")
