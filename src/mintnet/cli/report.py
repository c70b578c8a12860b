"""`mintnet report`: one page about a model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from mintnet.cli.command import DataCommand, File
from mintnet.cli.output import Tasks, check_output, console, written_words

if TYPE_CHECKING:
    from mintnet.analysis import Overview
    from mintnet.cli.model import OpenModel


@dataclass(kw_only=True)
class Report(DataCommand):
    """Write one self-contained HTML page about a run or a model: everything there is to see."""

    out: File = None
    """The page; report.html in the run or model folder if not given."""
    samples: int = 64
    """Images to draw."""
    reconstructions: int = 32
    """Test images to send there and back."""
    likelihood: int = 1024
    """Test images for the bits per dimension, at most."""
    time_limit: float = 15.0
    """Seconds for the curves of Algorithm 1, about. 0: no limit."""
    seed: int = 0
    """Of everything that is drawn."""

    def run(self) -> dict[str, Any]:
        if min(self.samples, self.reconstructions, self.likelihood) < 1:
            raise ValueError("--samples, --reconstructions and --likelihood are at least 1")
        out, model = console(), self.open()
        path = self.out or default_place(model)
        check_output(path)
        return finish(out, path, self.collect(out, model))

    def collect(self, out: Console, model: OpenModel) -> Overview:
        """Everything for the page."""
        from mintnet.analysis import Amounts, overview
        from mintnet.analysis.summary import kind_of

        data = self.images(model)
        amounts = Amounts(
            self.samples, self.reconstructions, self.likelihood, self.time_limit, self.seed
        )
        title = f"{model.label}: {kind_of(model.model)} for {data.name}"
        with Tasks(out) as task:
            solver = self.chosen_solver()
            found = overview(model.model, data, title, model.run, amounts, solver, stage=task)
        found.subtitle = (
            f"Weights: {model.folder}; images: the {self.split} part of {data.name}, "
            f"{len(data):,} of them."
        )
        found.configuration = {"model": model.config, **_run_facts(model.run)}
        return found


def finish(out: Console, path: Path, found: Overview) -> dict[str, Any]:
    """Write the page and say where it is."""
    from mintnet.figures import write_report

    words = written_words(path)
    written = write_report(path, found)
    for item in found.headlines:
        note = f"  [dim]{escape(item.note)}[/]" if item.note else ""
        out.print(f"{item.value:>12}  {item.label}{note}")
    out.print(words)
    return {"report": written, **found.to_dict()}


def default_place(model: OpenModel) -> Path:
    """report.html in the run or model folder, or here where that cannot be written."""
    folder = model.run or model.folder
    mine = Path(model.name).expanduser().exists() and os.access(folder, os.W_OK)
    return folder / "report.html" if mine else Path(f"{model.label}-report.html")


def _run_facts(run: Path | None) -> dict[str, Any]:
    """What run.json says, if there is one that can be read."""
    path = run / "run.json" if run else None
    if path is None or not path.is_file():
        return {}
    try:
        return {"run": json.loads(path.read_text())}
    except ValueError:
        return {}
