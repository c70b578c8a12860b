"""`mintnet info`, `import-original` and `data get`: what there is, and where from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from mintnet.analysis.layers import by, facts, kind_of, layer_sizes
from mintnet.cli.command import Command, Number
from mintnet.cli.model import open_model
from mintnet.cli.output import Tasks, console, print_table, strong
from mintnet.data import get
from mintnet.models import CLASSIFIERS, PRESETS, Classifier, Flow, ResNet, import_original
from mintnet.models.base import Model
from mintnet.models.storage import SHIPPED


@dataclass(kw_only=True)
class Info(Command):
    """Say what a model or a preset is: its shape, layers, parameters and where it came from."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run folder, a saved model folder, or the name of a shipped model or a preset."""

    then = "mintnet report {model}"

    def run(self) -> dict[str, Any]:
        model, config, origin = self._find()
        known = {"format", *model.describe()}
        extra = {name: value for name, value in config.items() if name not in known}
        layers, out = layer_sizes(model), console()
        if "fresh" in origin:
            self.then = "mintnet train {model}"
        out.print(f"{strong(self.model)}  {kind_of(model)} ({escape(origin)})")
        table = Table(box=None, show_header=False, pad_edge=False)
        for label, value in [*facts(model), *extra.items()]:
            if isinstance(value, dict):
                value = ", ".join(f"{k} {v}" for k, v in value.items() if v not in (None, False))
            table.add_row(label, escape(str(value)))
        out.print(table)
        if layers:
            rows = [(number, name, f"{size:,}") for number, (name, size) in enumerate(layers, 1)]
            print_table(out, "Layers", ("layer", "what it is", "parameters"), rows)
        return {
            "model": self.model,
            "origin": origin,
            **model.describe(),
            "parameters": model.parameter_count(),
            "layers": [{"name": name, "parameters": size} for name, size in layers],
            **extra,
        }

    def _find(self) -> tuple[Model, dict[str, Any], str]:
        """The model, what was saved with it, and where it comes from."""
        named, name = not Path(self.model).exists(), self.model
        if named and name == "folder":
            raise ValueError(
                "the net of folder follows the size of your pictures; train one (mintnet train "
                "folder --data PICTURES --run RUN), then mintnet info RUN; other presets: "
                f"{', '.join(PRESETS)}"
            )
        if named and name not in SHIPPED:
            fresh = "preset, fresh weights"
            if name in PRESETS:
                return Flow.preset(name), {}, fresh
            if name.removesuffix("-classifier") in CLASSIFIERS:
                return Classifier.preset(name), {}, fresh
            if name in ("mnist-resnet", "cifar10-resnet"):
                return ResNet.preset(name), {}, fresh
        opened = open_model(name, "cpu")
        trained = "comes with the package, trained"
        return opened.model, opened.config, trained if named else str(opened.folder)


@dataclass(kw_only=True)
class ImportOriginal(Command):
    """Turn a checkpoint in the authors' format into a model folder: density model or classifier."""

    checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="CHECKPOINT")]
    """The file; a .json beside it is read too."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """The model folder, new or empty."""
    logit_lambda: Number = None
    """λ, if no .json beside the file says it; else 1e-6 for grey images and 0.05 for colour."""

    then = "mintnet info {out}"

    def run(self) -> dict[str, Any]:
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ValueError(f"{self.out} is there already and not empty; name another folder")
        model = import_original(self.checkpoint, self.logit_lambda)
        preset = "mnist" if model.shape == (1, 28, 28) else None
        classifier = isinstance(model, Classifier)
        known = {"preset": f"{preset}{'-classifier' * classifier}", "data": {"name": preset}}
        model.save(self.out, imported_from=self.checkpoint.name, **(known if preset else {}))
        if isinstance(model, Classifier):
            count_of, words = len(model.layers()), f"of {model.classes} classes"
        else:
            count_of, words = len(model.net.layers()), f"λ = {model.describe()['logit_lambda']:g}"
        count = model.parameter_count()
        console().print(
            f"{escape(str(self.checkpoint))}: {kind_of(model)} with {count_of} Mint layers for "
            f"{by(model.shape)} images, {words}, {count:,} parameters\n{strong(self.out)}"
        )
        return {"out": self.out, **model.describe(), "parameters": count, "data": preset}


@dataclass(kw_only=True)
class Get(Command):
    """Download a data set, with its hashes checked; what is there already is verified and kept."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """digits, mnist, cifar10 or imagenet32."""
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")] = Path("data")
    """Where to; a subfolder of the set's name is made."""

    then = "mintnet train {name} --data {folder}"

    def run(self) -> dict[str, Any]:
        out = console()
        with Tasks(out) as task:
            task(f"getting {self.name}")
            files = get(self.name, self.folder)
        if not files:
            out.print(f"{self.name}: comes with the package, there is nothing to get")
        for file in files:
            out.print(f"here  {file}", markup=False)
        return {"name": self.name, "files": files}
