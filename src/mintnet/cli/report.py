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
from mintnet.calculus.masks import check_positive
from mintnet.cli.command import DataCommand, File
from mintnet.cli.model import OpenModel
from mintnet.cli.output import Tasks, console, output_place, write
from mintnet.figures import build_page
from mintnet.schema import read_json


@dataclass(kw_only=True)
class Report(DataCommand):
    """Write one self-contained HTML page about a run or a model: everything there is to see."""

    out: File = None  # The page; report.html in the run or model folder if not given.
    samples: int = 64  # Images to draw.
    seed: int = 0  # Of everything that is drawn.

    then = "open {report} in a browser"

    def run(self) -> dict[str, Any]:
        check_positive(samples=self.samples)
        out, model = console(), self.open()
        folder, here = model.run or model.folder, Path(f"{model.label}-report.html")
        mine = Path(model.name).expanduser().exists() and os.access(folder, os.W_OK)
        path = output_place(self.out or (folder / "report.html" if mine else here), "")
        return write_page(out, path, self.collect(out, model))

    def collect(self, out: Console, model: OpenModel) -> Overview:
        """Everything for the page."""
        data, run = self.images(model), model.run
        title = f"{model.label}: {kind_of(model.model)} for {data.name}"
        options = self.samples, self.seed, self.chosen_solver()
        with Tasks(out) as task:
            found = overview(model.model, data, title, run, *options, stage=task)
        part = f"the {self.split} part of {data.name}, {len(data):,} of them"
        found.subtitle = f"Weights: {model.folder}; images: {part}."
        found.configuration = {"model": model.config}
        if run is not None:
            with suppress(OSError, ValueError):  # a run may have metrics alone
                found.configuration["run"] = read_json(run / "run.json", dict)
        return found


def write_page(out: Console, path: Path, found: Overview) -> dict[str, Any]:
    """Write the page and say where it is."""
    page = build_page(found).encode()
    for item in found.headlines:
        note = f"  [dim]{escape(item.note)}[/]" if item.note else ""
        out.print(f"{item.value:>12}  {item.label}{note}")
    return {"report": write(out, path, page), **found.to_dict()}
