"""`mintnet doctor`: what this machine has, what is fast on it, and what is missing."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch

from mintnet.analysis.origin import machine
from mintnet.cli.command import Command
from mintnet.cli.output import console

CLI = "tyro", "rich", "matplotlib", "PIL", "pooch", "jinja2", "lightning_fabric"
EXTRAS = {
    "cli": ("the command line", *CLI),
    "studio": ("mintnet studio, in a browser", "gradio"),
    "tensorboard": ("mintnet train --tensorboard", "tensorboard"),
    "ffjord": ("FFJORD, a layer to compare with", "torchdiffeq"),
    "onnx": ("mintnet export", "onnx", "onnxscript", "onnxruntime"),
    "hub": ("models from and to the Hugging Face hub", "huggingface_hub"),
    "sklearn": ("mintnet.sklearn, estimators for tables", "sklearn"),
}
"""What each extra is for, and the modules that it brings."""


class Doctor(Command):
    """Print versions and devices, what is fast here, and what is missing, with how to get it."""

    then = "mintnet demo"

    def run(self) -> dict[str, Any]:
        about, gpus = machine(torch.device("cpu")), []
        versions = {"python": about["python"]}
        versions |= {name: version(name) for name in ("mintnet", "torch", "numpy", "safetensors")}
        for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            found = torch.cuda.get_device_properties(number)
            gpus.append(f"{found.name}, {found.total_memory / 2**30:.0f} GiB")
        fast, missing = _fast(bool(gpus)), dict[str, list[str]]()
        lines = ["versions  " + ", ".join(f"{name} {v}" for name, v in versions.items())]
        lines += [f"CPU       {about['device']}, {about['threads']} threads"]
        lines += [f"GPU       {'; '.join(gpus) or 'none that torch can use'}"]
        lines += [f"fast      {words}" for words in fast]
        for extra, (use, *modules) in EXTRAS.items():
            if lacking := [module for module in modules if find_spec(module) is None]:
                missing[extra] = lacking
                remedy = f"pip install 'mintnet[{extra}]'"
                lines += [f"missing   {use}: {', '.join(lacking)}; {remedy}"]
        lines += [] if missing else ["missing   nothing: all extras are installed"]
        console().print("\n".join(lines), markup=False)
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
