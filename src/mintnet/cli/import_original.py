"""`mintnet import-original`: the authors' checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape

from mintnet.cli.command import Command, Name, Number
from mintnet.cli.output import check_new_folder, console, strong


@dataclass(kw_only=True)
class ImportOriginal(Command):
    """Turn a checkpoint in the authors' format into a model folder: density model or classifier."""

    checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="CHECKPOINT")]
    """The file; a .json beside it is read too."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """The model folder, new or empty."""
    logit_lambda: Number = None
    """λ, if no .json beside the file says it; else 1e-6 for grey images and 0.05 for colour."""
    preset: Name = None
    """The data set it was trained on, to be remembered; mnist for grey images of 28 × 28."""

    def run(self) -> dict[str, Any]:
        from mintnet.analysis.layers import by, kind_of
        from mintnet.data import NAMES
        from mintnet.models import Classifier, import_original

        check_new_folder(self.out)
        if self.preset is not None and self.preset not in NAMES:
            raise ValueError(f"unknown data set {self.preset!r}; one of {', '.join(NAMES)}")
        model = import_original(self.checkpoint, self.logit_lambda)
        preset = self.preset or ("mnist" if model.shape == (1, 28, 28) else None)
        classifier = isinstance(model, Classifier)
        known = {"preset": f"{preset}{'-classifier' * classifier}", "data": {"name": preset}}
        model.save(self.out, imported_from=self.checkpoint.name, **(known if preset else {}))
        if isinstance(model, Classifier):
            layers, words = model.layers(), f"of {model.classes} classes"
        else:
            layers, words = model.net.layers(), f"λ = {model.logit.lam:g}"
        count = model.parameter_count()
        console().print(
            f"{escape(str(self.checkpoint))}: {kind_of(model)} with {len(layers)} Mint layers for "
            f"{by(model.shape)} images, {words}, {count:,} parameters\n{strong(self.out)}"
        )
        return {"out": self.out, **model.describe(), "parameters": count, "data": preset}
