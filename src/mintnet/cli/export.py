"""`mintnet export`: a model folder to give away."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mintnet.cli.command import Command, Model
from mintnet.cli.output import check_new_folder, console, strong


@dataclass(kw_only=True)
class Export(Command):
    """Write a model into a folder of its own, with weights in half precision: half the size.

    Masked entries are left out, as in every model folder. Evaluate what comes of it before you
    give it away: rounding changes a likelihood a little.
    """

    model: Model
    """A run folder, a saved model folder, or the name of a shipped model."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """The model folder, new or empty."""
    precision: Literal["half", "kept"] = "half"
    """Of the weights: half, or kept as it is."""

    def run(self) -> dict[str, Any]:
        from mintnet.files import sha256
        from mintnet.models.locate import load_model, locate
        from mintnet.models.storage import WEIGHTS, export_model

        check_new_folder(self.out)
        source = locate(self.model)
        load_model(source)  # a damaged model is not passed on
        rounding = export_model(source, self.out, half=self.precision == "half")
        load_model(self.out)
        weights = self.out / WEIGHTS
        size, digest = weights.stat().st_size, sha256(weights)
        out = console()
        out.print(f"{size / 1e6:.1f} MB; weights moved by at most {rounding:.1e} of the largest")
        out.print(f"sha256 {digest}")
        out.print(strong(self.out))
        return {"out": self.out, "bytes": size, "sha256": digest, "rounding": rounding}
