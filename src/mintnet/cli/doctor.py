"""`mintnet doctor`: what this machine has, what is fast on it, and what is missing."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from rich.markup import escape

from mintnet.analysis.origin import machine
from mintnet.cli.command import Command
from mintnet.cli.output import console

PACKAGES = ("mintnet", "torch", "numpy", "safetensors")
USES = {
    "cli": "the command line",
    "studio": "mintnet studio, in a browser",
    "sklearn": "mintnet.sklearn, estimators for tables",
    "onnx": "mintnet export",
    "hub": "models from and to the Hugging Face hub",
    "tensorboard": "mintnet train --tensorboard",
    "ffjord": "FFJORD, a layer to compare with",
}
"""What each extra is for."""


@dataclass(kw_only=True)
class Doctor(Command):
    """Print versions and devices, what is fast here, and what is missing, with how to get it."""

    then = "mintnet demo"

    def run(self) -> dict[str, Any]:
        out, about = console(), machine(torch.device("cpu"))
        versions = {"python": about["python"], **{name: version(name) for name in PACKAGES}}
        out.print("versions  " + ", ".join(f"{name} {v}" for name, v in versions.items()))
        gpus = []
        for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            found = torch.cuda.get_device_properties(number)
            gpus.append(f"{found.name}, {found.total_memory / 2**30:.0f} GiB")
        out.print(escape(f"CPU       {about['device']}, {about['threads']} threads"))
        out.print(escape(f"GPU       {'; '.join(gpus) or 'none that torch can use'}"))
        fast = _fast(bool(gpus))
        for line in fast:
            out.print(f"fast      {line}")
        missing = _missing()
        for extra, modules in missing.items():
            use = USES.get(extra, extra)
            words = f"{use}: {', '.join(modules)}; pip install 'mintnet[{extra}]'"
            out.print(f"missing   {escape(words)}")
        if not missing:
            out.print("missing   nothing: all extras are installed")
        return {**about, "versions": versions, "gpus": gpus, "fast": fast, "missing": missing}


def _fast(gpu: bool) -> list[str]:
    """What is fast here, and what would be with more."""
    if not gpu:
        return [
            "likelihoods, digits and small grey pictures, to sample and to train",
            "not here: training on CIFAR-10 or ImageNet, which takes a GPU (torch with CUDA)",
        ]
    half = torch.cuda.get_device_capability() >= (8, 0)
    compiled = find_spec("triton") is not None and any(map(shutil.which, ("gcc", "clang")))
    return [
        "everything: steps are captured as CUDA graphs",
        f"training in {'bf16' if half else 'float32, as this GPU has no bf16'}",
        "compiled" if compiled else "not compiled: that needs Triton and a C compiler",
    ]


def _missing() -> dict[str, list[str]]:
    """The modules that each extra would bring."""
    from mintnet.cli.app import EXTRAS

    found: dict[str, list[str]] = {}
    for module, extra in EXTRAS.items():
        if find_spec(module) is None:
            found.setdefault(extra, []).append(module)
    return found
