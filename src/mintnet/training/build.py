"""The model of a recipe: fresh weights, or those of ``--init``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from mintnet.bijections import Logit
from mintnet.data import ImageData
from mintnet.models.base import Model
from mintnet.models.classifier import CLASSIFIERS, PIXELS, Classifier
from mintnet.models.deep import DEEP_PRESETS, DeepConfig, DeepNet
from mintnet.models.flow import Flow
from mintnet.models.labelled import ImageClassifier
from mintnet.models.mintnet import PRESETS, MintNetConfig
from mintnet.models.resnet import ResNet, ResNetConfig
from mintnet.models.storage import locate, read_config
from mintnet.training.data import stream
from mintnet.training.folder import RunError
from mintnet.training.recipe import DEEP, Recipe, data_and_kind
from mintnet.training.task import ClassificationTask, DensityTask, Task, check_labels

WARMUP = 200
"""Steps over which the learning rate rises where a run starts from trained weights."""
NETWORK = ("pairs", "filters", "kernel_size", "couplings")


def options_of_model(preset: str, given: dict[str, Any]) -> dict[str, Any]:
    """Options that are not given, of the model to start from: network, logit, size, colour, split.

    With another held-out share it would be validated on images that it was trained on.
    """
    config, (name, kind) = read_config(locate(given["init"])), data_and_kind(preset)
    taken: dict[str, Any] = {"warmup": WARMUP}
    share, data = config.get("validation"), config.get("data")
    if isinstance(share, float) and isinstance(data, dict) and data.get("name") == name:
        taken["validation"] = share
    if kind == "flow":
        flow = Flow.load(given["init"])
        net = flow.net.config
        own = DEEP if isinstance(net, DeepConfig) else NETWORK
        taken |= {option: getattr(net, option) for option in own}
        taken |= {"labels": True} if flow.classes else {}
        if isinstance(flow.pixels, Logit):
            taken |= {"logit_lambda": flow.pixels.lam, "centre": flow.pixels.centre}
        if name == "folder":
            taken |= {"size": net.shape[1], "grey": net.shape[0] == 1}
    return {name: value for name, value in taken.items() if given.get(name) is None}


def build_task(recipe: Recipe, data: ImageData) -> Task:
    """The model of a recipe for these images with its loss, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(recipe.seed, "weights"))
        flow = data_and_kind(recipe.preset)[1] == "flow"
        task: Task = _density(recipe, data) if flow else _classification(recipe, data)
    if recipe.precision == "float64":
        task.model.double()
    return task


def _density(recipe: Recipe, data: ImageData) -> DensityTask:
    if recipe.label_smoothing:
        raise RunError(f"{recipe.preset} is a density model; it has no labels to smooth")
    deep = DEEP_PRESETS.get(recipe.preset)
    config = deep or PRESETS.get(recipe.preset) or folder_config(data.shape)
    if config.shape != data.shape:
        raise ValueError(f"{recipe.preset} takes images of shape {config.shape}; got {data.shape}")
    flow = _deep(recipe, data, deep) if deep else _paper(recipe, data, config)
    if recipe.init is not None:
        start = Flow.load(recipe.init)
        if (start.net.config, start.levels) != (flow.net.config, flow.levels):
            raise RunError(f"{recipe.init} holds another network: {_differences(start, flow)}")
        flow.load_state_dict(start.state_dict())
    return DensityTask(flow)


def _paper(recipe: Recipe, data: ImageData, config: Any) -> Flow:
    """A MintNet, as the paper has it."""
    if recipe.labels or recipe.layers or recipe.blocks or recipe.components:
        raise RunError(
            "--labels, --layers, --blocks and --components are for mixture layers; "
            f"{recipe.preset} has none: take a preset that ends with -deep"
        )
    lam = 0.05 if recipe.logit_lambda is None else recipe.logit_lambda
    return Flow(replace(config, **_chosen(recipe, NETWORK)), lam, data.levels, recipe.centre or 0.0)


def _deep(recipe: Recipe, data: ImageData, config: DeepConfig) -> Flow:
    """Mixture layers, started from the first thousand images."""
    for name in ("pairs", "kernel_size", "couplings", "logit_lambda", "centre"):
        if getattr(recipe, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise RunError(f"{recipe.preset} has mixture layers and no {flag}; leave it out")
    labels = data.labels if recipe.labels else None
    if recipe.labels and labels is None:
        raise RunError(f"{data.name} has no labels; leave out --labels")
    classes = 0 if labels is None else int(labels.max()) + 1
    config = replace(config, **_chosen(recipe, DEEP), classes=classes)
    flow = Flow(config, None, data.levels)
    images = data.images[:1000]
    context = None if labels is None else flow.context(labels[:1000], len(images))
    centres = (images.float() + 0.5) / data.levels
    assert isinstance(flow.net, DeepNet)
    flow.net.initialize(flow.pixels.transform(centres)[0], context)
    return flow


def _classification(recipe: Recipe, data: ImageData) -> ClassificationTask:
    preset = recipe.preset
    name, kind = data_and_kind(preset)
    for option, part in (("logit_lambda", "logit"), ("centre", "logit"), ("couplings", "coupling")):
        if getattr(recipe, option) is not None:
            flag = "--" + option.replace("_", "-")
            raise RunError(f"{preset} is a classifier; it has no {part}, and so no {flag}")
    pixels = PIXELS[name]
    if (pixels.shape, pixels.levels) != (data.shape, data.levels):
        raise ValueError(
            f"{preset} takes images of shape {pixels.shape} with {pixels.levels} levels; got "
            f"{data.shape} with {data.levels}"
        )
    check_labels(data, 10, "training")
    if bool((data.images == data.images[:1, :, :1, :1]).all()):
        raise RunError(
            f"all images of {data.name} are the same constant colour: batch normalization would "
            f"divide by 0; give images that differ"
        )
    chosen = _chosen(recipe, NETWORK)
    if kind == "resnet" and chosen:
        raise ValueError(
            "--pairs, --filters and --kernel-size are for Mint layers; a ResNet has none"
        )
    model: ImageClassifier = (
        ResNet(ResNetConfig(), pixels)
        if kind == "resnet"
        else Classifier(replace(CLASSIFIERS[name], **chosen), pixels)
    )
    if recipe.init is not None:
        start = Model.load(recipe.init)
        if not isinstance(start, ImageClassifier) or start.describe() != model.describe():
            raise RunError(
                f"{recipe.init} holds another network than {preset}; start from one of the same "
                f"kind and shape"
            )
        model.load_state_dict(start.state_dict())
    return ClassificationTask(model, recipe.label_smoothing)


def _chosen(recipe: Recipe, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(recipe, name)) is not None}


def _differences(start: Flow, flow: Flow) -> str:
    """In what a model to start from differs from the one to be trained, and what to do."""
    theirs, ours = (dict(f.net.config.to_dict(), levels=f.levels) for f in (start, flow))
    unlike = [name for name in ours if ours[name] != theirs[name]]
    words = ", ".join(f"{name} {theirs[name]} and not {ours[name]}" for name in unlike)
    flags = ", ".join("--" + name.replace("_", "-") for name in unlike)
    return f"{words}; " + (
        f"leave out {flags}" if set(unlike) <= {*NETWORK, *DEEP} else "choose another"
    )


def size_warning(size: int) -> str | None:
    """What a ``--size`` that does not halve evenly costs, in a line, if it costs anything."""
    stages, near = _stages(size, size), round(size / 4) * 4
    more = _stages(near, near)
    if size < 8 or more <= stages:  # smaller ones are not halved anyway
        return None
    words = "1 stage" if stages == 1 else f"{stages} stages"
    return (
        f"images of {size} × {size} do not halve evenly: the network has {words}; "
        f"--size {near} would give it {more}"
    )


def _stages(height: int, width: int) -> int:
    """One more for each time that both sides halve, three at most."""
    stages = 1
    while stages < 3 and height % 2 == 0 and width % 2 == 0 and min(height, width) >= 8:
        height, width, stages = height // 2, width // 2, stages + 1
    return stages


def folder_config(shape: tuple[int, int, int]) -> MintNetConfig:
    """A network for pictures of up to three stages: 0.6 s a step on two cores for 3 × 32 × 32."""
    c, h, w = shape
    stages = _stages(h, w)
    filters = [max(1, width // (c * 4**k)) for k, width in enumerate((48, 96, 96)[:stages])]
    return MintNetConfig(shape, pairs=(2, 3, 4)[:stages], filters=tuple(filters))
