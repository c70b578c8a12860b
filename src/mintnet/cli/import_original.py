"""`mintnet import-original`: the authors' checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.markup import escape

from mintnet.cli.command import Command
from mintnet.cli.output import console, strong

if TYPE_CHECKING:
    from mintnet.models import Classifier


@dataclass(kw_only=True)
class ImportOriginal(Command):
    """Turn a checkpoint in the authors' format into a model folder: density model or classifier."""

    checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="CHECKPOINT")]
    """The file; a .json beside it is read too."""

    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """The model folder, new or empty."""

    logit_lambda: float | None = None
    """λ, if no .json beside the file says it; else 1e-6 for grey images and 0.05 for colour."""

    preset: str | None = None
    """The data set it was trained on, to be remembered; mnist for grey images of 28 × 28."""

    def run(self) -> dict[str, Any]:
        from mintnet.data import NAMES
        from mintnet.models import Classifier, import_original

        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ValueError(f"{self.out} is there already and not empty; name another folder")
        if self.preset is not None and self.preset not in NAMES:
            raise ValueError(f"unknown data set {self.preset!r}; one of {', '.join(NAMES)}")
        flow = import_original(self.checkpoint, self.logit_lambda)
        preset = self.preset or ("mnist" if flow.shape == (1, 28, 28) else None)
        extra: dict[str, Any] = {"imported_from": self.checkpoint.name}
        if preset is not None:
            kind = "-classifier" if isinstance(flow, Classifier) else ""
            extra |= {"preset": f"{preset}{kind}", "data": {"name": preset}}
        flow.save(self.out, **extra)
        if isinstance(flow, Classifier):
            return self._tell_classifier(flow, preset)
        out = console()
        shape = " × ".join(map(str, flow.shape))
        out.print(
            f"{escape(str(self.checkpoint))}: {len(flow.net.layers())} Mint layers for "
            f"{shape} images, "
            f"K = {', '.join(map(str, flow.net.config.filters))}, λ = {flow.logit.lam:g}, "
            f"{flow.net.parameter_count():,} parameters"
        )
        out.print(strong(self.out))
        return {
            "out": self.out,
            "net": flow.net.config.to_dict(),
            "logit_lambda": flow.logit.lam,
            "parameters": flow.net.parameter_count(),
            "data": preset,
        }

    def _tell_classifier(self, model: Classifier, preset: str | None) -> dict[str, Any]:
        out = console()
        shape = " × ".join(map(str, model.shape))
        out.print(
            f"{escape(str(self.checkpoint))}: a classifier with {len(model.layers())} Mint layers "
            f"for {shape} images of {model.classes} classes, padded to {model.config.width} "
            f"channels, {model.parameter_count():,} parameters"
        )
        out.print(strong(self.out))
        return {
            "out": self.out,
            **model.describe(),
            "parameters": model.parameter_count(),
            "data": preset,
        }
