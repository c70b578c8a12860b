"""`mintnet score`: how odd pictures are, and where."""

from __future__ import annotations

import csv
import heapq
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.markup import escape
from torch import Tensor

from mintnet.analysis.measure import STATISTICS, has_map
from mintnet.analysis.score import Reference, score
from mintnet.cli.command import Folder, ModelCommand
from mintnet.cli.model import OpenModel
from mintnet.cli.output import Tasks, console, output_place, print_table, to_json, write
from mintnet.data.folder import pictures
from mintnet.figures.score import Shown, score_page
from mintnet.models.storage import SHIPPED, save_scores

ON_PAGE, PRINTED, AT_ONCE = 120, 15, 32  # pictures


@dataclass(kw_only=True)
class Score(ModelCommand):
    """Find odd pictures: bits per dimension, a p-value and a map of nats for each.

    The p-value is the share of pictures like the model's held-out training images that are at
    least as odd. Writes scores.csv, scores.json and scores.html: the oddest with their maps.
    """

    pictures: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="PICTURES…")]
    """Picture files, or folders of them; cropped and resized as for training."""
    rate: float = 0.01
    """Pictures with a p-value of at most this are flagged: the rate of false alarms."""
    reference: Folder = None
    """Pictures like those that the model was trained on, but not among them; if not given, the
    scores that are stored with the model. They are stored with a model of yours that has none."""
    draws: int = 1  # Dequantization draws for each picture.
    out: Folder = None
    """A new or empty folder for the results; MODEL-scores if not given, numbered if taken."""

    def run(self) -> dict[str, Any]:
        if not 0 < self.rate < 1:
            raise ValueError(f"--rate lies between 0 and 1; got {self.rate:g}")
        out, opened = console(), self.open()
        flow, folder = opened.flow, self.out or output_place(None, f"{opened.label}-scores")
        if folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"{folder} is there already and not empty; name another folder")
        sheet, data, page = (
            output_place(folder / f"scores.{kind}", "") for kind in ("csv", "json", "html")
        )
        paths = [path for given in self.pictures for path in _files(given)]
        rows, failed = list[dict[str, Any]](), dict[str, str]()
        oddest = list[tuple[float, int, Shown]]()
        with Tasks(out) as task:
            reference = self._reference(opened, task, failed)
            progress = task(f"scoring {len(paths):,} pictures")
            for names, images in _read(paths, opened, failed):
                index = torch.arange(len(rows), len(rows) + len(names))
                found = score(flow, images, self.draws, reference, index=index)
                for k, name in enumerate(names):
                    facts: dict[str, Any] = {
                        "picture": name,
                        "bits_per_dim": float(found.bits[k]),
                        "p_value": float(found.p_value[k]),
                        "odd": bool(found.flagged(self.rate)[k]),
                        "oddness": float(found.oddness[k]),
                        "reason": STATISTICS[found.reasons[k]],
                    }
                    shown = facts, images[k], None if found.unusual is None else found.unusual[k]
                    oddest.append((-facts["oddness"], len(rows), shown))
                    rows.append(facts)
                oddest = heapq.nsmallest(ON_PAGE, oddest, key=lambda entry: entry[:2])
                progress(len(rows) + len(failed), len(paths))
        for name, why in failed.items():
            out.print(f"[red]left out[/] {escape(name)}: {escape(why)}")
        if not rows:
            raise ValueError("there are no pictures to score: name files, or folders with some")
        words = f"{sum(row['odd'] for row in rows):,} of {len(rows):,} are odd at a rate of false "
        words += f"alarms of {100 * self.rate:g} %"
        if not has_map(flow.given(flow.context(None, 1))):
            words += "; this model is not triangular, so that there are no maps"
        lines = [
            (f"{r['p_value']:.4f}", f"{r['bits_per_dim']:.3f}", r["reason"], escape(r["picture"]))
            for _, _, (r, _, _) in oddest[:PRINTED]
        ]
        print_table(out, "The oddest", ("p-value", "bits/dim", "what is odd", "picture"), lines)
        out.print(words)
        figures = {"model": self.model, "rate": self.rate, "draws": self.draws, "summary": words}
        figures |= {"references": len(reference.statistics), "pictures": rows, "left_out": failed}
        text, title = io.StringIO(), f"{opened.label}: odd pictures"
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        html = score_page(title, words, [entry[-1] for entry in oddest], flow.levels)
        write(out, sheet, text.getvalue().encode())
        write(out, data, to_json(figures))
        write(out, page, html.encode())
        return figures

    def _reference(self, opened: OpenModel, task: Tasks, failed: dict[str, str]) -> Reference:
        """The reference scores, checked to be enough for the rate."""
        flow = opened.flow
        if self.reference is None:
            reference = Reference.stored(flow)
        else:
            batches = [images for _, images in _read(_files(self.reference), opened, failed)]
            if not batches:
                raise ValueError(f"--reference {self.reference} holds no picture that can be read")
            images = torch.cat(batches)
            progress = task(f"scoring {len(images):,} reference pictures")
            reference = Reference.of(flow, images, self.draws, progress)
            if flow.scores is None and opened.folder not in SHIPPED.values():
                save_scores(opened.folder, reference.tensors())
        if (count := len(reference.statistics)) + 1 < 1 / self.rate:
            raise ValueError(
                f"--rate {self.rate:g} needs at least {round(1 / self.rate) - 1} reference "
                f"pictures, and there are {count}; take a higher rate, or more with --reference"
            )
        return reference


def _files(given: Path) -> list[Path]:
    """A file itself, or the files below a folder."""
    path = given.expanduser()
    if not path.exists():
        raise ValueError(f"there is no picture and no folder {given}")
    return pictures(path) if path.is_dir() else [path]


def _read(
    paths: list[Path], opened: OpenModel, failed: dict[str, str]
) -> Iterator[tuple[list[str], Tensor]]:
    """Names and images, some at a time; why a file is left out goes into ``failed``."""
    for start in range(0, len(paths), AT_ONCE):
        images = dict[str, Tensor]()
        for name in map(str, paths[start : start + AT_ONCE]):
            try:
                images[name] = opened.picture(name)
            except ValueError as error:
                failed[name] = str(error)
        if images:
            yield list(images), torch.stack(list(images.values()))
