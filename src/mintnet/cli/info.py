"""`mintnet info`: what a model or a preset is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from mintnet.cli.command import Command
from mintnet.cli.output import console, in_words, strong

if TYPE_CHECKING:
    from mintnet.bijections import TriangularBijection
    from mintnet.models import Flow


@dataclass(kw_only=True)
class Info(Command):
    """Say what a model or a preset is: its shape, layers, parameters and where it came from."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run folder, a saved model folder, or the name of a shipped model or a preset."""

    def run(self) -> dict[str, Any]:
        from mintnet.cli.info_classifier import info_classifier
        from mintnet.figures.gather import model_facts
        from mintnet.models import PRESETS, Flow
        from mintnet.models.storage import SHIPPED

        named = not Path(self.model).exists()
        if named and self.model == "folder":
            raise ValueError(
                "the net of folder follows the size of your pictures; train one (mintnet train "
                "folder --data PICTURES --run RUN), then mintnet info RUN; other presets: "
                f"{', '.join(PRESETS)}"
            )
        if named and self.model in PRESETS and self.model not in SHIPPED:
            flow, config, origin = Flow.preset(self.model), {}, "preset, fresh weights"
        elif (figures := info_classifier(self.model)) is not None:
            return figures
        else:
            from mintnet.cli.model import open_model

            model = open_model(self.model, "cpu")
            flow, config, origin = model.flow, model.config, str(model.folder)
            if named and self.model in SHIPPED:
                origin = "comes with the package, trained"
        net = {"kind", "net", "format", "levels", "logit_lambda", "centre"}
        extra = {name: value for name, value in config.items() if name not in net}
        _print(self.model, origin, model_facts(flow), extra, flow)
        return {
            "model": self.model,
            "origin": origin,
            "net": flow.net.config.to_dict(),
            "levels": flow.levels,
            "logit_lambda": flow.logit.lam,
            "centre": flow.logit.centre,
            "parameters": flow.net.parameter_count(),
            "dimensions": flow.dimensions,
            "layers": [{"name": part.name, "parameters": _size(part)} for part in _solved(flow)],
            **extra,
        }


def _print(
    name: str, origin: str, facts: list[tuple[str, str]], extra: dict[str, Any], flow: Flow
) -> None:
    out = console()
    out.print(f"{strong(name)}  ({escape(origin)})")
    table = Table(box=None, show_header=False, pad_edge=False)
    for label, value in [*facts, *((key, in_words(value)) for key, value in extra.items())]:
        table.add_row(label, escape(value))
    out.print(table)
    layers = Table(title="Layers", title_justify="left", title_style="bold")
    layers.add_column("layer", justify="right")
    layers.add_column("what it is")
    layers.add_column("parameters", justify="right")
    for number, part in enumerate(_solved(flow), 1):
        layers.add_row(str(number), part.name, f"{_size(part):,}")
    out.print(layers)


def _solved(flow: Flow) -> list[TriangularBijection]:
    """Mint layers and couplings: what an inverse has to solve, numbered as `verify` does."""
    from mintnet.bijections import TriangularBijection

    return [part for part in flow.net.chain.leaves() if isinstance(part, TriangularBijection)]


def _size(part: TriangularBijection) -> int:
    from mintnet.bijections import MintLayer

    if isinstance(part, MintLayer):
        return part.parameter_count()
    return sum(parameter.numel() for parameter in part.parameters())
