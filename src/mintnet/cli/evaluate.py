"""mintnet evaluate: how good a model is on a whole set of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mintnet.cli.command import Command, Model
from mintnet.cli.output import console


@dataclass(kw_only=True)
class Evaluate(Command):
    """How good a model is on a whole set of images: bits per dimension, or accuracy.

    Density models: mean bits per dimension with its standard error; the dequantization noise of
    an image depends on seed, draw and its place alone. Classifiers: accuracy, confusion,
    calibration, and a picture with the most confident mistakes. Computed in float32 whatever the
    training precision was.
    """

    model: Model
    """A run folder, a saved model folder or the name of a shipped model."""
    data: Path | None = None
    """Folder with the data set's files; the one it was trained on if not given."""
    draws: int = 1
    """Draws of dequantization noise for each image."""
    data_set: Annotated[str | None, tyro.conf.arg(aliases=["--name"])] = None
    """The data set, where it is not the model's own: digits, mnist, cifar10, imagenet32, folder."""
    split: Literal["test", "train"] = "test"
    """Which part of the data set."""
    count: Annotated[int | None, tyro.conf.arg(aliases=["-n"])] = None
    """How many images, from the first on; all if not given."""
    seed: int = 0
    """Of the noise."""
    batch_size: int = 100
    """Images at a time, on each device; figures do not depend on it."""
    devices: str | None = None
    """A number, or auto for all there are."""
    nodes: int | None = None
    """Machines."""
    accelerator: Literal["auto", "cpu", "cuda", "gpu", "mps"] = "auto"
    """Kind of device."""
    out: Path | None = None
    """The picture about a classifier; evaluation.png if not given."""

    def run(self) -> dict[str, Any]:
        """Evaluate, and return the figures."""
        import torch

        from mintnet.analysis.origin import machine
        from mintnet.cli.classifier import is_classifier
        from mintnet.cli.evaluate_classifier import evaluate_classifier
        from mintnet.models.flow import Flow
        from mintnet.models.locate import locate
        from mintnet.precision import true_float32
        from mintnet.training import Devices, evaluate
        from mintnet.training.data import data_of
        from mintnet.training.devices import is_first_process

        folder = locate(self.model)
        if is_classifier(self.model):
            return evaluate_classifier(self)
        if self.out is not None:
            raise ValueError("--out is for classifiers; a density model has no picture here")
        data = data_of(folder, self.split, self.data_set, self.data)
        data = data if self.count is None else data.first(self.count)
        flow = Flow.load(folder)
        devices = Devices(self.devices, self.nodes, self.accelerator)
        result = evaluate(
            flow,
            data,
            draws=self.draws,
            seed=self.seed,
            batch_size=self.batch_size,
            devices=devices,
        )
        if is_first_process():
            console().print(
                f"{self.model}: {result.bits_per_dim:.4f} ± {result.standard_error:.4f} bits per "
                f"dimension on {result.images:,} {self.split} images of {data.name}, "
                f"{result.draws} draw{'s' if result.draws > 1 else ''} of noise",
                markup=False,
            )
        with true_float32():  # as `evaluate` computes
            where = machine(torch.device("cuda" if devices.cuda else "cpu"))
        return {
            "model": self.model,
            "data": data.name,
            "split": self.split,
            "precision": str(next(flow.parameters()).dtype).removeprefix("torch."),
            **result.to_dict(),
            "machine": where,
        }
