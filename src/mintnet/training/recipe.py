"""Every option of a training run, listed once, for presets, the command line and run.json."""
# ruff: noqa: RUF009 - `option` makes a field

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from mintnet.models.base import Config
from mintnet.models.classifier import CLASSIFIERS
from mintnet.models.deep import DEEP_PRESETS, Order
from mintnet.models.flow import LAMBDAS
from mintnet.models.mintnet import PRESETS
from mintnet.models.storage import did_you_mean
from mintnet.training.folder import OTHER, RunError

NETWORK: dict[str, tuple[str, ...]] = {  # options that are fields of the network's configuration
    "flow": ("pairs", "filters", "kernel_size", "couplings"),
    "deep": ("layers", "filters", "blocks", "components", "order"),
    "classifier": ("pairs", "filters", "kernel_size"),
    "resnet": (),
}
OWN: dict[str, tuple[str, ...]]  # options that a kind alone has
OWN = {"flow": ("logit_lambda", "centre"), "deep": ("labels", "label_weight")}
OWN |= dict.fromkeys(("classifier", "resnet"), ("label_smoothing",))
KINDS = {"flow": "a flow of Mint layers", "deep": "a flow of mixture layers (-deep)"}
KINDS |= {"classifier": "a classifier", "resnet": "a ResNet"}


def flag(name: str) -> str:
    """How an option is written on the command line."""
    return "--" + name.replace("_", "-")


def option(default: Any, group: str, help: str, shown: str = "", alias: str = "") -> Any:
    """A field of `Recipe` with its help; ``shown`` says what a default of None stands for."""
    about = {"group": group, "help": help, "shown": shown, "alias": alias}
    return field(default=default, metadata=about)


Count = Annotated[int, (0, 2**40)]
Positive = Annotated[int, (1, 2**40)]
Seed = Annotated[int, (-(2**63), 2**63 - 1)]
Share = Annotated[float, (0, 1 - 1e-9)]
Milestone = Annotated[float, (1e-9, 1 - 1e-9)]
Scale = Annotated[float, (1e-100, 1e100)]
Amount = Annotated[float, (0, 2**40)]
Whole = tuple[int, ...] | None
Augmentation = Literal["none", "flip", "crop", "crop-flip", "crop-flip-cutout"]
Schedule = Literal["step", "cosine", "linear"]
Precision = Literal["auto", "float32", "tf32", "bf16", "float64"]
Accelerator = Literal["auto", "cpu", "cuda", "gpu", "mps"]
INIT = "A model to start from; network, size, colour and held-out share are its own."
SAMPLES = "Steps between grids of samples, 0 for none; they take at most a tenth of the time."
CENTRE = "Of the logit: what padding stands for; -6.54 is black."
BF16 = "auto: bf16 on a GPU that has it, else float32."


@dataclass(frozen=True)
class Recipe(Config):
    """The options of one training run.

    Losses are in nats per image, which ``eps`` and ``clip`` belong to. Milestones are shares of
    the run, so that a schedule keeps its form when the length of the run changes.
    """

    preset: str

    epochs: Positive = option(100, "run", "Passes over the training images.")
    max_steps: Count = option(0, "run", "Length in steps, where that is shorter; 0: no limit.")
    batch_size: Positive = option(32, "run", "Images in one step, over all devices together.")
    learning_rate: Scale = option(1e-3, "run", "At its highest.", alias="--lr")
    seed: Seed = option(0, "run", "Of the first weights, the order of the images and the noise.")
    init: str | None = option(None, "run", INIT, "fresh weights")

    data: str | None = option(None, "data", "Folder with the data set; not for digits.", "none")
    size: int | None = option(None, "data", "Height and width, for the preset folder.", "32")
    grey: bool = option(False, "data", "One channel instead of three, for the preset folder.")
    validation: Share = option(0.05, "data", "Share of the training images held out; 0: none.")
    augmentation: Augmentation = option("none", "data", "Of the training images.")
    labels: bool = option(False, "data", "Condition a deep flow on labels; of folder, subfolders.")

    pairs: Whole = option(None, "network", "Pairs of Mint layers in each stage.", "none")
    layers: Whole = option(None, "network", "Mixture layers in each stage.", "by size")
    blocks: Whole = option(None, "network", "Residual blocks of each, by stage.", "by size")
    components: Whole = option(None, "network", "Of each mixture, by stage.", "by size")
    filters: Whole = option(None, "network", "K of each stage.", "by size")
    order: Order | None = option(
        None, "network", "In which entries of mixture layers see each other.", "pixel"
    )
    kernel_size: int | None = option(None, "network", "Of masked convolutions, odd.", "3")
    couplings: int | None = option(None, "network", "Width of couplings after squeezes.", "0")
    logit_lambda: float | None = option(None, "network", "λ of the logit.", "0.05")
    centre: float | None = option(None, "network", CENTRE, "0")

    schedule: Schedule = option("cosine", "optimization", "Of the learning rate.")
    milestones: tuple[Milestone, ...] = option((), "optimization", "Of step: shares of the run.")
    warmup: Count = option(0, "optimization", "Steps over which the learning rate rises.")
    adam: bool = option(False, "optimization", "Adam instead of AMSGrad.")
    muon: bool = option(False, "optimization", "Muon for kernels; these for all other weights.")
    eps: Scale = option(1e-4, "optimization", "ε of AMSGrad and Adam.")
    weight_decay: Amount = option(0.0, "optimization", "Of kernels, decoupled as in AdamW.")
    label_smoothing: Share = option(0.0, "optimization", "Share of a label spread over classes.")
    label_weight: Amount = option(0.0, "optimization", "Of Bayes' rule in the loss, with --labels.")
    ema: Share = option(0.0, "optimization", "Decay of the EMA weights, which are saved; 0: none.")
    clip: Amount = option(0.0, "optimization", "Largest norm of the gradient, in nats; 0: none.")
    precision: Precision = option("auto", "optimization", BF16)

    checkpoint_every: Count | None = option(None, "output", "In steps.", "every 30 seconds")
    sample_every: Count | None = option(None, "output", SAMPLES, "ten grids in a run")
    tensorboard: bool = option(False, "output", "Write curves for TensorBoard too.")

    devices: str = option("1", "devices", "A number, or auto; torchrun and SLURM set it.")
    nodes: Positive = option(1, "devices", "Machines; torchrun and SLURM set it.")
    accelerator: Accelerator = option("auto", "devices", "Kind of device.")
    threads: Positive | None = option(None, "devices", "CPU threads.", "all, or 1 for tiny images")
    plain: bool = option(False, "devices", "No fast path and no CUDA graph on a GPU.")

    def check_more(self) -> None:
        if self.muon and self.weight_decay:
            raise ValueError("Muon has no weight decay: give --no-muon or --weight-decay 0")

    @staticmethod
    def of(preset: str, **given: Any) -> "Recipe":
        """The preset's recipe with the options that are given; None means not given."""
        given = {name: value for name, value in given.items() if value is not None}
        if preset not in RECIPES:
            known = f"choose one of {', '.join(RECIPES)}{did_you_mean(preset, RECIPES)}"
            if Path(preset).is_dir():
                known = f"for a folder of pictures, say mintnet train folder --data {preset}"
            raise ValueError(f"unknown preset {preset!r}; {known}")
        if unknown := sorted(given.keys() - OPTIONS.keys()):
            words = f"expected one of {', '.join(OPTIONS)}{did_you_mean(unknown[0], OPTIONS)}"
            raise ValueError(f"unknown option {unknown[0]!r}; {words}")
        recipe = replace(RECIPES[preset], **given)
        for name, value in given.items():
            if value and (words := recipe.refusal(name)):
                raise RunError(f"{preset} {words}; leave {flag(name)} out")
        if "milestones" in given and recipe.schedule != "step":
            raise ValueError(f"milestones belong to --schedule step; this is {recipe.schedule}")
        return recipe

    def refusal(self, name: str) -> str:
        """Why this run cannot take an option; empty where it can."""
        data, _ = data_and_kind(self.preset)
        if name == "data" and data == "digits":
            return "needs no files: its images come with the package"
        if name in ("size", "grey") and data != "folder":
            return "has images of one shape; other sizes and grey are for the preset folder"
        kinds = [other for other in NETWORK if name in NETWORK[other] + OWN[other]]
        if not kinds or self.kind in kinds:
            return ""
        owners = " and ".join(KINDS[kind] for kind in kinds)
        return f"is {KINDS[self.kind]} and has no {flag(name)}, which is for {owners}"

    def resumed(self, run: str, preset: str, **given: Any) -> "Recipe":
        """This recipe for a run that goes on; only what is `FREE` may differ."""
        if self.preset != preset:
            raise RunError(f"{run} is a run of preset {self.preset}, not {preset}; {OTHER}")
        given = {name: value for name, value in given.items() if value is not None}
        if given.get("precision") == "auto":
            del given["precision"]  # it was chosen when the run began
        wanted = replace(self, **given)
        for name in sorted(given.keys() - FREE):
            if (before := getattr(self, name)) != (now := getattr(wanted, name)):
                words = f"{run} was begun with {name.replace('_', ' ')} {before}, not {now}"
                raise RunError(f"{words}; resume it without that option, or {OTHER}")
        if wanted.epochs != self.epochs and "max_steps" not in given:
            wanted = replace(wanted, max_steps=0)  # or the old limit would end the longer run
        return wanted

    @property
    def kind(self) -> str:
        """flow, deep, classifier or resnet; with ``pairs``, a folder of pictures is for a flow."""
        return "flow" if self.preset == "folder" and self.pairs else data_and_kind(self.preset)[1]

    def steps(self, per_epoch: int) -> int:
        return min(self.epochs * per_epoch, self.max_steps or 2**62)


OPTIONS = {f.name: f for f in fields(Recipe) if f.name != "preset"}
TYPES: dict[str, Any] = get_type_hints(Recipe)
FREE = {n for n, f in OPTIONS.items() if f.metadata["group"] in ("output", "devices")}
FREE |= {"data", "epochs", "max_steps"}  # what may differ when a run is resumed


def data_and_kind(preset: str) -> tuple[str, str]:
    """The data set of a preset, and the kind of model: flow, deep, classifier or resnet."""
    data, _, kind = preset.rpartition("-")
    return (data, kind) if kind in NETWORK else (preset, "deep" if preset == "folder" else "flow")


_DEEP: dict[str, Any] = {"batch_size": 256, "learning_rate": 1e-2, "schedule": "linear"}
_DEEP |= {"muon": True, "adam": True, "eps": 1e-8, "warmup": 300, "ema": 0.999}
_PICTURES: dict[str, Any] = {"batch_size": 32, "warmup": 20, "ema": 0.99, "augmentation": "flip"}
_LABELLED: dict[str, Any] = {"batch_size": 256, "learning_rate": 2e-3, "eps": 1e-6, "clip": 5.0}
_LABELLED |= {"weight_decay": 0.1, "label_smoothing": 0.1, "ema": 0.999, "validation": 0.0}
_LABELLED |= {"augmentation": "crop"}
_CIFAR: dict[str, Any] = {"epochs": 70, "warmup": 400, "augmentation": "crop-flip-cutout"}
_SMALL: dict[str, Any] = {"batch_size": 64, "learning_rate": 4e-3, "validation": 0.05, "ema": 0.0}


def _recipe(preset: str, **settings: Any) -> Recipe:
    """The recipe of a preset; its network is that of the model's preset."""
    data, kind = data_and_kind(preset)
    defaults = {"flow": {"logit_lambda": LAMBDAS.get(data), "centre": 0.0}, "deep": _DEEP}
    nets: dict[str, Any] = {"flow": PRESETS.get(preset), "deep": DEEP_PRESETS.get(preset)}
    net = nets.get(kind, CLASSIFIERS.get(data))
    network = {name: getattr(net, name) for name in NETWORK[kind]}
    return Recipe(preset, **{**defaults.get(kind, _LABELLED), **network, **settings})


RECIPES: dict[str, Recipe] = {
    recipe.preset: recipe
    for recipe in (
        # Two minutes on two cores.
        _recipe("digits", epochs=30, learning_rate=2e-2, clip=100.0),
        # The paper's: a tenth of the learning rate from epochs 250 and 350 on.
        _recipe("mnist", epochs=400, schedule="step", milestones=(0.625, 0.875)),
        _recipe("cifar10", epochs=200, augmentation="flip"),
        # The paper's 350,000 steps come before the tenth epoch ends.
        _recipe("imagenet32", epochs=10, max_steps=350_000),
        _recipe("digits-deep", epochs=40, batch_size=32, warmup=50, ema=0.99),
        _recipe("mnist-deep", epochs=100),
        _recipe("cifar10-deep", epochs=150, augmentation="flip", validation=0.02),
        _recipe("imagenet32-deep", epochs=10),
        # For some hundred pictures of one's own: about ten minutes on two cores.
        Recipe("folder", epochs=80, **{**_DEEP, **_PICTURES}),
        _recipe("digits-classifier", epochs=40, warmup=20, **_SMALL),
        _recipe("mnist-classifier", epochs=10, warmup=450),
        _recipe("cifar10-classifier", **_CIFAR),
        _recipe("mnist-resnet", epochs=10, warmup=450),
        _recipe("cifar10-resnet", **_CIFAR),
    )
}
