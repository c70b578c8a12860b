"""`mintnet report`: one page about a model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mintnet.cli.command import DataCommand
from mintnet.cli.output import check_output, console, written_words

if TYPE_CHECKING:
    from mintnet.cli.model import OpenModel
    from mintnet.figures.report import Contents, Headline


@dataclass(kw_only=True)
class Report(DataCommand):
    """Write one self-contained HTML page about a run or a model: everything there is to see."""

    out: Path | None = None
    """The page; report.html in the run or model folder if not given."""

    samples: int = 64
    """Images to draw."""

    reconstructions: int = 32
    """Test images to send there and back."""

    likelihood: int = 1024
    """Test images for the bits per dimension, at most."""

    time_limit: float = 60.0
    """Seconds for the curves of Algorithm 1, about. 0: no limit."""

    seed: int = 0
    """Of everything that is drawn."""

    def run(self) -> dict[str, Any]:
        from mintnet.cli.classifier import is_classifier
        from mintnet.cli.report_classifier import report_classifier
        from mintnet.figures.gather import Amounts

        if min(self.samples, self.reconstructions, self.likelihood) < 1:
            raise ValueError("--samples, --reconstructions and --likelihood are at least 1")
        if is_classifier(self.model):
            return report_classifier(self)
        out, model = console(), self.open()
        path = self.out or default_place(model)
        check_output(path)
        amounts = Amounts(self.samples, self.reconstructions, self.likelihood, self.time_limit)
        contents = collect(self, out, model, amounts)
        return finish(out, path, contents, [])


def collect(command: DataCommand, out: Console, model: OpenModel, amounts: Any) -> Contents:
    """Everything for the page, told as it goes on."""
    from mintnet.figures.gather import gather

    data = command.images(model)
    with out.status("measuring") as status:
        contents = gather(
            model.flow,
            data,
            title=f"{model.label}: a MintNet for {data.name}",
            run=model.run,
            amounts=amounts,
            solver=command.chosen_solver(),
            seed=getattr(command, "seed", 0),
            tell=lambda words: status.update(words),
        )
    contents.subtitle = (
        f"An invertible network with exact likelihood. Weights: {model.folder}; images: the "
        f"{command.split} part of {data.name}, {len(data):,} of them."
    )
    contents.configuration = {"model": model.config, **run_facts(model.run)}
    return contents


def finish(
    out: Console, path: Path, contents: Contents, headlines: list[Headline]
) -> dict[str, Any]:
    """Write the page and say where it is."""
    from mintnet.figures import write_report

    contents.headlines[1:1] = headlines
    words = written_words(path)
    written = write_report(path, contents)
    for item in contents.headlines:
        note = f"  [dim]{item.note}[/]" if item.note else ""
        out.print(f"{item.value:>12}  {item.label}{note}")
    out.print(words)
    return {
        "report": written,
        "bits_per_dim": contents.bits_per_dim,
        "headlines": {item.label: item.value for item in contents.headlines},
        "curves": [curve.to_dict() for curve in contents.curves],
        "layers": [row.to_dict() for row in contents.layers],
    }


def default_place(model: OpenModel) -> Path:
    """report.html in the run or model folder, or here where that cannot be written."""
    folder = model.run or model.folder
    mine = Path(model.name).expanduser().exists() and os.access(folder, os.W_OK)
    return folder / "report.html" if mine else Path(f"{model.label}-report.html")


def run_facts(run: Path | None) -> dict[str, Any]:
    """What run.json says, if there is one that can be read."""
    path = run / "run.json" if run else None
    if path is None or not path.is_file():
        return {}
    try:
        return {"run": json.loads(path.read_text())}
    except ValueError:
        return {}
