"""`mintnet info`, `export`, `import-original`, `data get` and `doctor`: what there is here."""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.markup import escape

from mintnet.analysis.layers import by, facts, kind_of, solved_layers
from mintnet.analysis.origin import machine
from mintnet.cli.command import Command, DataOptions, Number
from mintnet.cli.command import Model as ModelName
from mintnet.cli.model import open_model
from mintnet.cli.output import Tasks, console, new_folder, output_place, print_table, strong
from mintnet.data import get
from mintnet.models import Classifier, Flow, ResNet, import_original
from mintnet.models.base import Model, parameter_count
from mintnet.models.storage import SHIPPED
from mintnet.training.devices import Devices, why_not_compiled
from mintnet.training.recipe import RECIPES


class Info(Command, then="mintnet report {model}"):
    """Say what a model or a preset is: its shape, layers, parameters and where it came from."""

    model: ModelName  # A run or saved model folder, or the name of a shipped model or a preset.

    def run(self) -> dict[str, Any]:
        model, config, origin = self._find()
        about, out = model.describe(), console()
        layers = [(layer.name, parameter_count(layer)) for layer in solved_layers(model)]
        extra = {name: v for name, v in config.items() if name not in {"format", *about}}
        if "fresh" in origin:
            self.then = "mintnet train {model}"
        out.print(f"{strong(self.model)}  {kind_of(model)} ({escape(origin)})")
        lines = dict(facts(model)) | extra
        width = max(map(len, lines))
        for name, value in lines.items():
            if isinstance(value, dict):
                value = ", ".join(f"{k} {v}" for k, v in value.items() if v not in (None, False))
            out.print(f"{name:<{width}}  {value}", markup=False)
        if layers:
            rows = [(number, name, f"{size:,}") for number, (name, size) in enumerate(layers, 1)]
            print_table(out, "Layers", ("layer", "what it is", "parameters"), rows)
        known = {"origin": origin, **about, "parameters": model.parameter_count()}
        known["layers"] = [{"name": name, "parameters": size} for name, size in layers]
        return {"model": self.model} | known | extra

    def _find(self) -> tuple[Model, dict[str, Any], str]:
        """The model, what was saved with it, and where it comes from."""
        named, name = not Path(self.model).exists(), self.model
        if named and name in RECIPES and name not in SHIPPED:
            if name == "folder":
                words = "train one (mintnet train folder --data PICTURES --run RUN), then name RUN"
                words += f"; other presets: {', '.join(RECIPES)}"
                raise ValueError(f"the net of folder follows the size of your pictures; {words}")
            kinds: dict[str, Any] = {"classifier": Classifier, "resnet": ResNet}
            return kinds.get(RECIPES[name].kind, Flow).preset(name), {}, "preset, fresh weights"
        opened = open_model(name, "cpu")
        trained = "comes with the package, trained"
        return opened.model, opened.config, trained if named else str(opened.folder)


class Export(DataOptions, Command):
    """Write log-likelihood and code z of a model as ONNX, checked with onnxruntime."""

    model: ModelName  # A run or model folder, a shipped model's name, or user/model of the hub.
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE.onnx")]
    """The file to write."""
    count: int = 4  # With how many images the file is checked.

    def run(self) -> dict[str, Any]:
        for module in ("onnx", "onnxscript", "onnxruntime"):  # said before anything takes time
            import_module(module)
        from mintnet.models.onnx import export_onnx

        place, out = output_place(self.file, "", (".onnx",), "FILE").expanduser(), console()
        opened = open_model(self.model, "cpu")
        flow, images = opened.flow, self.images(opened, self.count).images
        with Tasks(out) as task:
            errors = export_onnx(flow, place, images, task)
        labels = " and labels, int64 (batch,)" if flow.classes else ""
        given = '{{"x": x, "labels": labels}}' if labels else '{{"x": x}}'
        self.then = f"in Python: onnxruntime.InferenceSession(FILE).run(None, {given})"
        shape, size = ", ".join(map(str, flow.shape)), place.stat().st_size
        out.print(f"{strong(place)}, {size / 2**20:.1f} MiB")
        out.print(f"takes x in (0, 1), float32 (batch, {shape}){labels}; gives log_prob and z")
        worst = f"log_prob {errors['log_prob']:.1e}, z {errors['z']:.1e}"
        out.print(f"onnxruntime agrees with torch on {len(images)} images: {worst}")
        return {"file": str(place), "bytes": size, "images": len(images), "errors": errors}


class ImportOriginal(Command, then="mintnet info {out}"):
    """Turn a checkpoint in the authors' format into a model folder: density model or classifier."""

    checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="CHECKPOINT")]
    """The file; a .json beside it is read too."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """The model folder, new or empty."""
    logit_lambda: Number = None  # λ, if no .json says it; else 1e-6 for grey, 0.05 for colour.

    def run(self) -> dict[str, Any]:
        new_folder(self.out)
        model = import_original(self.checkpoint, self.logit_lambda)
        if isinstance(model, Flow):
            preset, words = "mnist", f"λ = {model.describe()['logit_lambda']:g}"
        else:
            preset, words = "mnist-classifier", f"of {model.classes} classes"
        data = "mnist" if model.shape == (1, 28, 28) else None
        known = {"preset": preset, "data": {"name": data}} if data else {}
        model.save(self.out, imported_from=self.checkpoint.name, **known)
        count = model.parameter_count()
        console().print(
            f"{escape(str(self.checkpoint))}: {kind_of(model)} with {len(solved_layers(model))} "
            f"Mint layers for {by(model.shape)} images, {words}, {count:,} parameters\n"
            f"{strong(self.out)}"
        )
        return {"out": self.out, **model.describe(), "parameters": count, "data": data}


class Get(Command, then="mintnet train {name} --data {folder}"):
    """Download a data set, with its hashes checked; what is there already is verified and kept."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """digits, mnist, cifar10 or imagenet32."""
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")] = Path("data")
    """Where to; a subfolder of the set's name is made."""

    def run(self) -> dict[str, Any]:
        out = console()
        with Tasks(out) as task:
            task(f"getting {self.name}")
            files = get(self.name, self.folder)
        if not files:
            out.print(f"{self.name}: comes with the package, there is nothing to get")
            self.then = "mintnet train {name}"
        for file in files:
            out.print(f"here  {file}", markup=False)
        return {"name": self.name, "files": files}


CLI = "tyro", "rich", "matplotlib", "PIL", "pooch", "jinja2", "lightning_fabric"
EXTRAS = {  # what each is for, and the modules that it brings
    "cli": ("the command line", *CLI),
    "studio": ("mintnet studio, in a browser", "gradio"),
    "tensorboard": ("mintnet train --tensorboard", "tensorboard"),
    "ffjord": ("FFJORD, a layer to compare with", "torchdiffeq"),
    "onnx": ("mintnet export", "onnx", "onnxscript", "onnxruntime"),
    "hub": ("models from and to the Hugging Face hub", "huggingface_hub"),
    "sklearn": ("mintnet.sklearn, estimators for tables", "sklearn"),
}


class Doctor(Command, then="mintnet demo"):
    """Print versions and devices, what is fast here, and what is missing, with how to get it."""

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
    if not gpu:
        return [
            "likelihoods, digits and small grey pictures, to sample and to train",
            "not here: training on CIFAR-10 or ImageNet, which takes a GPU (torch with CUDA)",
        ]
    half = "bf16" if Devices().bf16 else "float32, as this GPU has no bf16"
    graphs = "everything: steps are captured as CUDA graphs"
    return [graphs, f"training in {half}", why_not_compiled() or "compiled"]
