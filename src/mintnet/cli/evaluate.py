"""`mintnet evaluate`: how good a model is on a whole set of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import tyro

from mintnet.analysis.origin import machine
from mintnet.cli.command import Command, DataOptions, File, Model, Name, Whole
from mintnet.cli.model import OpenModel, open_model
from mintnet.cli.output import console, output_place, write
from mintnet.data import ImageData
from mintnet.figures import evaluation_picture
from mintnet.models import Flow
from mintnet.models.labelled import ImageClassifier
from mintnet.precision import true_float32
from mintnet.training import Devices, evaluate
from mintnet.training.devices import is_first_process


@dataclass(kw_only=True)
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
