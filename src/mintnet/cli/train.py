"""`mintnet train`, `evaluate` and `report`: a model from its first step to a page about it."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from mintnet import training
from mintnet.analysis import Overview, overview
from mintnet.analysis.layers import kind_of
from mintnet.analysis.origin import machine
from mintnet.cli.command import Command, DataCommand, DataOptions, File, Model, Name, Whole
from mintnet.cli.model import OpenModel, open_model
from mintnet.cli.output import Tasks, console, output_place, write
from mintnet.data import ImageData
from mintnet.figures.classification import evaluation_picture
from mintnet.figures.report import build_page
from mintnet.models import Flow
from mintnet.models.classifier import ImageClassifier
from mintnet.precision import true_float32
from mintnet.schema import read_json
from mintnet.training import Devices
from mintnet.training.recipe import OPTIONS, RECIPES, TYPES, Recipe

RUN = Annotated[
    Path | None,
    tyro.conf.arg(name="run", metavar="DIR", help_behavior_hint="(default: runs/PRESET)"),
]


class Train(Command, then="mintnet report {run}"):
    """Train a preset on its data; mintnet train PRESET --help shows the values that it uses.

    The run folder gets the weights (last and best), the metrics, samples and all that --resume
    needs. Options left out are the preset's, or those of the run that is resumed.
    """

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")]
    """Density models: digits, mnist, cifar10, imagenet32, each also with -deep for mixture layers,
    or folder for pictures of your own. Classifiers: digits-classifier, mnist-classifier,
    cifar10-classifier, mnist-resnet, cifar10-resnet."""
    run_folder: RUN = None
    """Run folder, new or empty."""
    resume: bool = False
    """Go on with the run in the folder, or begin one; with a larger --epochs it is extended."""

    @staticmethod
    def for_arguments(arguments: Sequence[str]) -> type["Train"]:
        """The command with the values of the preset in the arguments, and in help its options."""
        preset = next((word for word in arguments if word in RECIPES), "")
        recipe = RECIPES[preset] if preset else Recipe("")
        kinds = [recipe, replace(recipe, pairs=(1,))] if preset == "folder" else [recipe]
        hidden = preset and not {"-h", "--help"}.isdisjoint(arguments)
        groups: dict[str, list[Any]] = {}
        for name, entry in OPTIONS.items():
            if not (hidden and all(kind.refusal(name) for kind in kinds)):
                groups.setdefault(entry.metadata["group"], []).append(_option(name, recipe))
        fields, flat = groups.pop("run"), tyro.conf.OmitArgPrefixes
        for group, options in groups.items():
            kind: Any = make_dataclass(group, options)
            fields.append((f"{group}_", Annotated[flat[kind], tyro.conf.arg(name=group)]))
        made = make_dataclass("Train", fields, bases=(Train,), kw_only=True)
        made.__doc__ = Train.__doc__
        return made

    def run(self) -> dict[str, Any]:
        groups = [value for value in vars(self).values() if is_dataclass(value)]
        options = {n: v for group in (self, *groups) for n, v in vars(group).items()}
        given = {name: value for name, value in options.items() if name in OPTIONS}
        out, folder = console(), self.run_folder or Path("runs", self.preset)
        bar = training.Progress(out)
        found = training.train(self.preset, folder, resume=self.resume, progress=bar, **given)
        if training.is_first_process():
            best, steps = found["best"], found["steps"]
            taken = f"{steps} step{'s' * (steps != 1)} in {found['seconds']:.0f} s of training"
            if best is not None:
                taken += f", best validation {found['figure']} {best:.3f} at {found['best_step']}"
            out.print(f"{found['run']}: {taken}", markup=False)
        return found


def _option(name: str, recipe: Recipe) -> tuple[str, Any, Any]:
    """A field of the command for a field of the recipe; None is not given."""
    about, value, kind = OPTIONS[name].metadata, getattr(recipe, name), TYPES[name]
    words, many = about["shown"] if value is None else value, "tuple" in str(kind)
    if isinstance(value, tuple):
        words = " ".join(map(str, value)) or "none"
    elif kind is bool:
        words = "on" if value else "off"
    arg = tyro.conf.arg(
        help=about["help"],
        aliases=[about["alias"]] if about["alias"] else None,
        help_behavior_hint=f"(default: {words})",
        metavar=("FLOAT ..." if "float" in str(kind) else "INT ...") if many else None,
    )
    return name, Annotated[kind | None, arg], None


class Evaluate(DataOptions, Command, then="mintnet report {model}"):
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
    classify: bool = False  # Of class-conditional models: the share of wrong labels as well.
    count: Annotated[int | None, tyro.conf.arg(aliases=["-n"])] = None
    """How many images, from the first on; all if not given."""
    seed: int = 0  # Of the dequantization noise.
    batch_size: int = 100  # Images at a time, on each device; figures do not depend on it.
    devices: Name = None  # A number, or auto for all there are.
    nodes: Whole = None  # Machines.
    accelerator: Literal["auto", "cpu", "cuda", "gpu", "mps"] = "auto"  # Kind of device.
    out: File = None  # The picture about a classifier; evaluation.png, numbered, if not given.

    def run(self) -> dict[str, Any]:
        opened = open_model(self.model, "cpu")  # `evaluate` moves it
        flow = isinstance(opened.model, Flow)
        if flow and self.out is not None:
            raise ValueError("--out is for classifiers; a density model has no picture here")
        noise = {"draws": self.draws != 1, "bound": self.bound != "mean", "classify": self.classify}
        if not flow and any(noise.values()):
            given = " and ".join(f"--{name}" for name, on in noise.items() if on)
            words = f"and {self.model} is a classifier; leave it out"
            raise ValueError(f"{given} is for density models, {words}")
        if not flow:
            self.out = output_place(self.out, "evaluation.png", [".png"])
        data = self.images(opened, self.count)
        devices = Devices(self.devices, self.nodes, self.accelerator)
        precision = str(opened.model.dtype).removeprefix("torch.")
        known = {"data": data.name, "split": self.split, "precision": precision}
        return known | (self._density if flow else self._classifier)(opened, data, devices)

    def _density(self, opened: OpenModel, data: ImageData, devices: Devices) -> dict[str, Any]:
        if self.classify and not opened.flow.classes:
            raise ValueError(f"{self.model} has no labels for --classify; leave it out")
        options: dict[str, Any] = {"draws": self.draws, "seed": self.seed, "bound": self.bound}
        options |= {"batch_size": self.batch_size, "devices": devices, "classify": self.classify}
        result = training.evaluate(opened.flow, data, **options)
        if training.is_first_process():
            words = f"{self.model}: {result.bits_per_dim:.4f} ± {result.standard_error:.4f} bits "
            words += "per dimension" + ", given the label," * bool(opened.flow.classes)
            words += f" on {result.images:,} {self.split} images of {data.name}, "
            words += f"{result.draws} dequantization draw{'s' * (result.draws > 1)} each"
            if result.label_error is not None:
                words += f"; Bayes' rule gives {100 * result.label_error:.2f} % a wrong label"
            console().print(words, markup=False)
        with true_float32():  # as `evaluate` computes
            where = machine(torch.device("cuda" if devices.cuda else "cpu"))
        return {**asdict(result), "machine": where}

    def _classifier(self, opened: OpenModel, data: ImageData, devices: Devices) -> dict[str, Any]:
        assert isinstance(opened.model, ImageClassifier) and self.out is not None
        found = training.evaluate(opened.model, data, batch_size=self.batch_size, devices=devices)
        figures: dict[str, Any] = found.to_dict()
        if not training.is_first_process():
            return figures
        share, of = 100 * found.accuracy, f"{len(data):,} {self.split} images of {data.name}"
        out, names = console(), opened.class_names(data.name)
        words = f"{share:.2f} % right (± {100 * found.standard_error:.2f}), {figures['errors']:,} "
        words += f"mistakes in {of}; cross entropy {found.nats:.4f} nats, calibration error "
        out.print(f"{words}{100 * found.calibration.error:.2f} %", markup=False)
        title = f"{self.model}: {share:.2f} % of {of} are right"
        picture = evaluation_picture(found, data.images, data.levels, names, title)
        about = ": confusion, reliability and the most confident mistakes"
        return {**figures, "picture": write(out, self.out, picture, about)}


class Report(DataCommand, then="open {report} in a browser"):
    """Write one self-contained HTML page about a run or a model: everything there is to see."""

    out: File = None  # The page; report.html in the run or model folder if not given.
    samples: int = 64  # Images to draw.
    seed: int = 0  # Of everything that is drawn.

    def run(self) -> dict[str, Any]:
        out, model = console(), self.open()
        folder, here = model.run or model.folder, Path(f"{model.label}-report.html")
        mine = Path(model.name).expanduser().exists() and os.access(folder, os.W_OK)
        path = output_place(self.out or (folder / "report.html" if mine else here), "")
        return write_page(out, path, self.collect(out, model))

    def collect(self, out: Console, model: OpenModel) -> Overview:
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
