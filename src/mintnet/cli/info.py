"""`mintnet info`: what a model or a preset is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from mintnet.cli.command import Command
from mintnet.cli.output import console, print_table, strong

if TYPE_CHECKING:
    from mintnet.models.base import Model


@dataclass(kw_only=True)
class Info(Command):
    """Say what a model or a preset is: its shape, layers, parameters and where it came from."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run folder, a saved model folder, or the name of a shipped model or a preset."""

    def run(self) -> dict[str, Any]:
        from mintnet.analysis.layers import facts, kind_of, layer_sizes

        model, config, origin = self._find()
        known = {"format", *model.describe()}
        extra = {name: value for name, value in config.items() if name not in known}
        layers = layer_sizes(model)
        out = console()
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
        from mintnet.cli.model import open_model
        from mintnet.models import CLASSIFIERS, PRESETS, Classifier, Flow, ResNet
        from mintnet.models.storage import SHIPPED

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
