"""`mintnet evaluate` and `report`: how good a model is, and one page about it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from mintnet.analysis import Overview, overview
from mintnet.analysis.layers import kind_of
from mintnet.analysis.origin import machine
from mintnet.cli.command import Command, DataCommand, DataOptions, File, Model, Name, Whole
from mintnet.cli.model import OpenModel, open_model
from mintnet.cli.output import Tasks, console, output_place, write
from mintnet.data import ImageData
from mintnet.figures import build_page, evaluation_picture
from mintnet.models import Flow
from mintnet.models.labelled import ImageClassifier
from mintnet.precision import true_float32
from mintnet.schema import read_json
from mintnet.training import Devices, evaluate
from mintnet.training.devices import is_first_process


class Evaluate(DataOptions, Command):
    """How good a model is on a whole set of images: bits per dimension, or accuracy.

    Density models: mean bits per dimension with its standard error; the dequantization noise of
    an image depends on seed, draw and its place alone. Classifiers: accuracy, confusion,
    calibration, and a picture with the most confident mistakes. Computed in float32 whatever the
    training precision was.
    """

    model: Model  # A run folder, a saved model folder or the name of a shipped model.
    draws: int = 1  # Dequantization draws for each image.
    bound: Literal["mean", "importance"] = "mean"
    """Mean over draws, or the tighter bound: the logarithm of the mean likelihood."""
    count: Annotated[int | None, tyro.conf.arg(aliases=["-n"])] = None
    """How many images, from the first on; all if not given."""
    seed: int = 0  # Of the dequantization noise.
    batch_size: int = 100  # Images at a time, on each device; figures do not depend on it.
    devices: Name = None  # A number, or auto for all there are.
    nodes: Whole = None  # Machines.
    accelerator: Literal["auto", "cpu", "cuda", "gpu", "mps"] = "auto"  # Kind of device.
    out: File = None
    """The picture about a classifier; evaluation.png if not given, numbered if that is taken."""

    then = "mintnet report {model}"

    def run(self) -> dict[str, Any]:
        opened = open_model(self.model, "cpu")  # `evaluate` moves it
        flow = isinstance(opened.model, Flow)
        if flow and self.out is not None:
            raise ValueError("--out is for classifiers; a density model has no picture here")
        if not flow and self.draws != 1:
            raise ValueError(
                f"{self.model} is a classifier: its images get no noise, so --draws has no meaning"
            )
        if not flow:
            self.out = output_place(self.out, "evaluation.png", [".png"])
        data = self.images(opened, self.count)
        devices = Devices(self.devices, self.nodes, self.accelerator)
        precision = str(opened.model.dtype).removeprefix("torch.")
        known = {"data": data.name, "split": self.split, "precision": precision}
        return known | (self._density if flow else self._classifier)(opened, data, devices)

    def _density(self, opened: OpenModel, data: ImageData, devices: Devices) -> dict[str, Any]:
        options: dict[str, Any] = {"draws": self.draws, "seed": self.seed, "bound": self.bound}
        options |= {"batch_size": self.batch_size, "devices": devices}
        result = evaluate(opened.flow, data, **options)
        if is_first_process():
            console().print(
                f"{self.model}: {result.bits_per_dim:.4f} ± {result.standard_error:.4f} bits per "
                f"dimension on {result.images:,} {self.split} images of {data.name}, "
                f"{result.draws} dequantization draw{'s' if result.draws > 1 else ''} each",
                markup=False,
            )
        with true_float32():  # as `evaluate` computes
            where = machine(torch.device("cuda" if devices.cuda else "cpu"))
        return {**result.to_dict(), "machine": where}

    def _classifier(self, opened: OpenModel, data: ImageData, devices: Devices) -> dict[str, Any]:
        assert isinstance(opened.model, ImageClassifier) and self.out is not None
        found = evaluate(opened.model, data, batch_size=self.batch_size, devices=devices)
        figures: dict[str, Any] = found.to_dict()
        if not is_first_process():
            return figures
        share, of = 100 * found.accuracy, f"{len(data):,} {self.split} images of {data.name}"
        out, names = console(), opened.class_names(data.name)
        out.print(
            f"{share:.2f} % right (± {100 * found.standard_error:.2f}), {figures['errors']:,} "
            f"mistakes in {of}; cross entropy {found.nats:.4f} nats, calibration error "
            f"{100 * found.calibration.error:.2f} %",
            markup=False,
        )
        title = f"{self.model}: {share:.2f} % of {of} are right"
        picture = evaluation_picture(found, data.images, data.levels, names, title)
        about = ": confusion, reliability and the most confident mistakes"
        return {**figures, "picture": write(out, self.out, picture, about)}


class Report(DataCommand):
    """Write one self-contained HTML page about a run or a model: everything there is to see."""

    out: File = None  # The page; report.html in the run or model folder if not given.
    samples: int = 64  # Images to draw.
    seed: int = 0  # Of everything that is drawn.

    then = "open {report} in a browser"

    def run(self) -> dict[str, Any]:
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
