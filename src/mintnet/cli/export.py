"""`mintnet export`: a density model as an ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import tyro

from mintnet.cli.command import Command, DataOptions, Model, check_positive
from mintnet.cli.model import open_model
from mintnet.cli.output import console, output_place, strong


@dataclass(kw_only=True)
class Export(DataOptions, Command):
    """Write log-likelihood and code z of a model as ONNX, checked with onnxruntime."""

    model: Model
    """A run folder, a saved model folder, the name of a shipped model, or user/model of the hub."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE.onnx")]
    """The file to write."""
    count: int = 4
    """With how many images the file is checked."""

    def run(self) -> dict[str, Any]:
        for module in ("onnx", "onnxscript", "onnxruntime"):  # said before anything takes time
            import_module(module)
        from mintnet.models.onnx import export_onnx

        check_positive(count=self.count)
        place, out = output_place(self.file, "", (".onnx",), "FILE").expanduser(), console()
        opened = open_model(self.model, "cpu")
        flow, images = opened.flow, self.images(opened, self.count).images
        errors = export_onnx(flow, place, images)
        labels = " and labels, int64 (batch,)" if flow.classes else ""
        shape, size = ", ".join(map(str, flow.shape)), place.stat().st_size
        out.print(f"{strong(place)}, {size / 2**20:.1f} MiB")
        out.print(f"takes x in (0, 1), float32 (batch, {shape}){labels}; gives log_prob and z")
        worst = f"log_prob {errors['log_prob']:.1e}, z {errors['z']:.1e}"
        out.print(f"onnxruntime agrees with torch on {len(images)} images: {worst}")
        return {"file": str(place), "bytes": size, "images": len(images), "errors": errors}
