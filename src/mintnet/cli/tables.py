"""`mintnet train table.csv`, and `sample`, `score`, `evaluate`, `report` of such a model."""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from mintnet.analysis.overview import Headline, Overview
from mintnet.cli.command import Command, Count, File, Model
from mintnet.cli.model import open_model
from mintnet.cli.output import console, new_folder, output_place, to_csv, write
from mintnet.cli.train import RUN, write_page
from mintnet.figures.style import LIGHT, saved, styled_figure
from mintnet.models import TableModel
from mintnet.tables import check_rows, fit_table

Rows = NDArray[np.float64]
Table = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="TABLE.csv")]
OwnTable = Annotated[
    tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="TABLE.csv", help_behavior_hint="")
]
SHOWN = 12  # columns in the picture of the report, at most


def read_table(path: Path, columns: list[str] | None = None) -> tuple[list[str], Rows]:
    """The names of the columns of a CSV file and its rows; if given, of these columns alone.

    The first row is a header if none of its cells is a number. Commas, semicolons and tabs part
    cells. A cell that is missing or no number is told by its column and its row, as editors count.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)
        parsed = enumerate(csv.reader(io.StringIO(text), delimiter=separator), 1)
        lines = [(number, cells) for number, cells in parsed if any(map(str.strip, cells))]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a CSV file in UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file that can be read ({error})") from None
    if not lines:
        raise ValueError(f"{path} is empty; expected a table with a row for each sample")
    header = all(_number(cell) is None for cell in lines[0][1])
    names = [cell.strip() for cell in lines[0][1]]
    if not header:
        names = [f"column {index}" for index in range(1, len(names) + 1)]
    elif len(set(names)) < len(names):
        raise ValueError(f"{path}: two columns have the same name in row {lines[0][0]}")
    columns = names if columns is None else columns
    if missing := [name for name in columns if name not in names]:
        raise ValueError(f"{path} lacks the column {missing[0]!r} that the model was trained on")
    rows = np.empty((len(lines) - header, len(columns)))
    for index, (number, cells) in enumerate(lines[header:]):
        if len(cells) != len(names):
            raise ValueError(f"{path}, row {number}: {len(cells)} cells, expected {len(names)}")
        known = dict(zip(names, map(str.strip, cells), strict=True))
        for column, name in enumerate(columns):
            value = _number(known[name])
            if value is None:
                what = f"{known[name]!r} is no finite number" if known[name] else "is missing"
                words = f"{what}; leave the row or column out, or write numbers"
                raise ValueError(f"{path}, row {number}, column {name!r}: {words}")
            rows[index, column] = value
    return columns, rows


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _nine_digits(rows: Rows) -> Iterator[list[str]]:
    return ([f"{value:.9g}" for value in row] for row in rows)


class Train(Command, then="mintnet sample {run} --out new.csv, or mintnet report {run}"):
    """Fit a density to the rows of a CSV file whose cells are all numbers, in about a minute."""

    table: Table  # The table; its first row may be a header.
    run_folder: RUN = None  # The model folder, new or empty; runs/TABLE if not given.
    seed: int = 0  # Of all that is drawn; the same seed and table give the same model.

    def run(self) -> dict[str, Any]:
        folder = new_folder(self.run_folder or Path("runs", self.table.stem))
        names, rows = read_table(self.table)
        check_rows(rows, names)
        out, size = console(), f"{len(rows):,} rows of {len(names)} columns"
        out.print(f"fitting a density to {size}", style="dim")
        model = fit_table(rows, names, seed=self.seed)
        figures = {"rows": len(rows), "held_out_nats": model.held_out, "seed": self.seed}
        model.save(folder, data={"table": str(self.table.absolute())}, **figures)
        words = f"{model.held_out:.3f} nats a row on rows that were held out"
        out.print(f"{folder}: {size}, {words}", markup=False)
        return {"run": folder, **figures}


class TableCommand(Command):
    """A command about a model of a table."""

    model: Model  # The folder that `mintnet train TABLE.csv` has made.

    def open(self) -> tuple[TableModel, dict[str, Any]]:
        found = open_model(self.model, "cpu")
        if not isinstance(found.model, TableModel):
            words = "CSV files are for models of tables; mintnet train TABLE.csv makes one"
            raise ValueError(f"{self.model} is a {found.model.kind}, and {words}")
        return found.model, found.config


def scored(model: TableModel, path: Path) -> tuple[Rows, Rows]:
    """The rows of a table with the columns of the model, and log p of each in nats, (n,)."""
    rows = read_table(path, model.columns)[1]
    if not len(rows):
        raise ValueError(f"{path} has a header and no rows")
    return rows, model.log_prob(torch.tensor(rows)).numpy()


class Sample(TableCommand, then="mintnet score {model} {out}"):
    """Draw new rows from a model of a table into a CSV file; those of flows are verified."""

    count: Count = 1000  # How many rows.
    out: File = None  # The CSV file; samples.csv if not given, numbered if that is taken.
    seed: int = 0  # Of the draws.

    def run(self) -> dict[str, Any]:
        place = output_place(self.out, "samples.csv", [".csv"])
        model, _ = self.open()
        rows = model.sample(self.count, self.seed).numpy()
        write(console(), place, to_csv(model.columns, _nine_digits(rows)), f": {self.count:,} rows")
        return {"out": place, "rows": self.count, "seed": self.seed}


class Score(TableCommand, then="mintnet report {model} {table}"):
    """How likely each row of a table is under a model: a CSV file with a row for each."""

    table: Table  # The table, with the columns of the model.
    out: File = None  # The CSV file; scores.csv if not given, numbered if that is taken.

    def run(self) -> dict[str, Any]:
        place, out = output_place(self.out, "scores.csv", [".csv"]), console()
        rows, nats = scored(self.open()[0], self.table)
        least = int(nats.argmin())
        out.print(f"mean {nats.mean():.3f} nats; least likely: row {least + 1}, {nats[least]:.3f}")
        sheet = to_csv(["log_likelihood"], _nine_digits(nats[:, None]))
        write(out, place, sheet, f": {len(rows):,} rows")
        return {"out": place, "rows": len(rows), "nats": float(nats.mean()), "least": least + 1}


class Evaluate(TableCommand, then="mintnet report {model}"):
    """The mean log-likelihood of the rows of a table under a model, with its standard error."""

    table: OwnTable = None  # The table; the one that the model was trained on if not given.

    def run(self) -> dict[str, Any]:
        model, config = self.open()
        path = self.table or Path(config["data"]["table"])
        rows, nats = scored(model, path)
        error = float(nats.std() / len(nats) ** 0.5)
        words = f"{nats.mean():.4f} ± {error:.4f} nats a row on {len(rows):,} rows of {path.name}"
        own = " (rows that it was trained on)" if self.table is None else ""
        console().print(f"{self.model}: {words}{own}", markup=False)
        return {"nats": float(nats.mean()), "standard_error": error, "rows": len(rows)}


class Report(TableCommand, then="open {report} in a browser"):
    """Write one self-contained HTML page about a model of a table."""

    table: OwnTable = None  # Rows to compare with; those of the training if not given.
    out: File = None  # The page; report.html in the model folder if not given.
    seed: int = 0  # Of the rows that are drawn.

    def run(self) -> dict[str, Any]:
        model, config = self.open()
        path = self.table or Path(config["data"]["table"])
        place = output_place(self.out or Path(self.model) / "report.html", "")
        rows, nats = scored(model, path)
        drawn = model.sample(max(1000, len(rows)), self.seed).numpy()
        about = "Rows of the table, and rows drawn from the model."
        held = f"{config.get('held_out_nats', math.nan):.3f}"
        found = Overview(
            f"{Path(self.model).name}: a density of {len(model.columns)} columns",
            f"Rows: {path}, {len(rows):,} of them. Samples of flows are verified inverses.",
            headlines=[
                Headline(held, "nats a row, held out", "by members that had not seen them"),
                Headline(f"{nats.mean():.3f}", "nats a row", f"of {path.name}"),
                Headline(f"{len(model.flows)}", "flows", f"and {len(model.means)} Gaussians"),
            ],
            gallery=[("Columns", about, _histograms(model.columns, rows, drawn))],
            configuration={"model": {k: v for k, v in config.items() if k != "flows"}},
        )
        return write_page(console(), place, found)


def _histograms(names: list[str], rows: Rows, drawn: Rows) -> bytes:
    """Each column of a table beside the same column of samples, as a PNG file."""
    shown = min(len(names), SHOWN)
    across = min(3, shown)
    down = math.ceil(shown / across)
    table, samples = LIGHT.colours[:2]
    with styled_figure(LIGHT, (3.4 * across, 2.4 * down)) as figure:
        for place in range(shown):
            axes = figure.add_subplot(down, across, place + 1)
            both = rows[:, place], drawn[:, place]
            low, high = np.quantile(np.concatenate(both), [0.002, 0.998])
            bins = np.linspace(low, high, 31).tolist()
            axes.hist(both[0], bins, density=True, color=table, alpha=0.45, label="table")
            axes.hist(both[1], bins, density=True, color=samples, histtype="step", label="samples")
            axes.set(title=names[place], yticks=[])
            if place == 0:
                axes.legend()
        return saved(figure)
