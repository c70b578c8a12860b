"""The model of a recipe: fresh weights, or those of ``--init``."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from mintnet.bijections import Logit
from mintnet.data import ImageData
from mintnet.models.base import Model, Shape
from mintnet.models.classifier import CLASSIFIERS, PIXELS, Classifier, ImageClassifier
from mintnet.models.deep import DEEP_PRESETS, DeepConfig, DeepNet
from mintnet.models.flow import Flow
from mintnet.models.mintnet import PRESETS, MintNetConfig
from mintnet.models.resnet import ResNet, ResNetConfig
from mintnet.models.storage import locate, read_config
from mintnet.training.data import stream
from mintnet.training.folder import RunError
from mintnet.training.output import Progress
from mintnet.training.recipe import NETWORK, Recipe, data_and_kind, flag
from mintnet.training.step import ClassificationTask, DensityTask, Task, check_labels

FIRST = 250  # images that deep models are started from
PEAK = 0.1  # where one grey level has a larger share of the pixels, deep models equalize the levels


def options_of_model(preset: str, given: dict[str, Any]) -> dict[str, Any]:
    """Options not given, of the model to start from: network, logit, size, colour, split."""
    config, (name, kind) = read_config(locate(given["init"])), data_and_kind(preset)
    taken: dict[str, Any] = {"warmup": 200}  # trained weights are not thrown off at once
    share, data = config.get("validation"), config.get("data")
    if isinstance(share, float) and isinstance(data, dict) and data.get("name") == name:
        taken["validation"] = share  # or it would be validated on what it was trained on
    if kind in ("flow", "deep"):
        flow = Flow.load(given["init"])
        net = flow.net.config
        own = NETWORK["deep" if isinstance(net, DeepConfig) else "flow"]
        taken |= {option: getattr(net, option) for option in own}
        taken["labels"] = True if flow.classes else None
        if isinstance(flow.pixels, Logit):
            taken |= {"logit_lambda": flow.pixels.lam, "centre": flow.pixels.centre}
        if name == "folder":
            taken |= {"size": net.shape[1], "grey": net.shape[0] == 1}
    return {name: value for name, value in taken.items() if given.get(name) is None}


def build_task(
    recipe: Recipe,
    data: ImageData,
    progress: Progress | None = None,
    weights: Mapping[str, Any] | None = None,  # of a checkpoint, which will replace its own
) -> Task:
    """A recipe's model with its loss, on the CPU, started from images unless weights are given."""
    chosen = {name: getattr(recipe, name) for name in NETWORK[recipe.kind]}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    build: Any = {"flow": _paper, "deep": _deep}.get(recipe.kind, _classifier)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(recipe.seed, "weights"))
        model: Flow | ImageClassifier = build(recipe, data, chosen)
    if (model.shape, model.levels) != (data.shape, data.levels):
        wanted = f"{recipe.preset} takes images of shape {model.shape} with {model.levels} levels"
        raise ValueError(f"{wanted}; got {data.shape} with {data.levels}")
    if weights is None and recipe.init is not None:
        start = Model.load(recipe.init)
        if unlike := _differences(start, model):
            raise RunError(f"{recipe.init} holds another network: {unlike}")
        model.load_state_dict(model.state_dict() | start.state_dict())
    elif weights is None and isinstance(model, Flow) and isinstance(model.net, DeepNet):
        images = data.images[:FIRST]
        (progress or Progress())(f"starting the network from {len(images)} images")
        if int(images.flatten().int().bincount().max()) > PEAK * images.numel():
            model.net.layers()[0].equalize(images)
        noisy = model.dequantize(images, recipe.seed)  # or levels would seem to have no width
        labels = data.labels[:FIRST] if recipe.labels and data.labels is not None else None
        model.net.initialize(model.pixels.value(noisy), model.context(labels, len(images)))
    if recipe.precision == "float64":
        model.double()
    if isinstance(model, Flow):
        return DensityTask(model, recipe.label_weight)
    return ClassificationTask(model, recipe.label_smoothing)


def _paper(recipe: Recipe, data: ImageData, chosen: dict[str, Any]) -> Flow:
    filters = _filters(data.shape, len(chosen["pairs"]))
    config = PRESETS.get(recipe.preset) or MintNetConfig(data.shape, chosen["pairs"], filters)
    lam = 0.05 if recipe.logit_lambda is None else recipe.logit_lambda
    return Flow(replace(config, **chosen), lam, data.levels, recipe.centre or 0.0)


def _deep(recipe: Recipe, data: ImageData, chosen: dict[str, Any]) -> Flow:
    labels = data.labels if recipe.labels else None
    if recipe.labels and labels is None:
        raise RunError(f"{data.name} has no labels; leave out --labels, or use subfolders")
    classes = 0 if labels is None else len(data.classes) or int(labels.max()) + 1
    config = DEEP_PRESETS.get(recipe.preset) or pictures_config(data.shape, chosen)
    return Flow(replace(config, **chosen, classes=classes), None, data.levels)


def _classifier(recipe: Recipe, data: ImageData, chosen: dict[str, Any]) -> ImageClassifier:
    name, kind = data_and_kind(recipe.preset)
    check_labels(data, 10, "training")
    if bool((data.images == data.images[:1, :, :1, :1]).all()):
        raise RunError(f"all images of {data.name} are one constant colour: give some that differ")
    if kind == "resnet":
        return ResNet(ResNetConfig(), PIXELS[name])
    return Classifier(replace(CLASSIFIERS[name], **chosen), PIXELS[name])


def _differences(start: Model, model: Model) -> str:
    """In what a model to start from differs from the one to be trained, and what to do."""
    names, about = ("kind", "levels", "input"), [m.describe() for m in (start, model)]
    theirs, ours = ({**a["net"], **{name: a.get(name) for name in names}} for a in about)
    if theirs.get("classes") == 0:  # what labels add to a network changes nothing at first
        theirs["classes"] = ours.get("classes")
    unlike = [name for name in ours if ours[name] != theirs.get(name)]
    words = ", ".join(f"{name} {theirs.get(name)} and not {ours[name]}" for name in unlike)
    given = set(unlike) <= {name for names in NETWORK.values() for name in names}
    advice = f"leave out {', '.join(map(flag, unlike))}" if given else "choose another"
    return f"{words}; {advice}" if unlike else ""


def pictures_config(shape: Shape, chosen: dict[str, Any]) -> DeepConfig:
    """A network for pictures of one's own: two stages, or one where a side is odd."""
    per_stage = [len(value) for value in chosen.values() if isinstance(value, tuple)]
    stages = next(iter(per_stage), 1 if shape[1] % 2 or shape[2] % 2 else 2)
    blocks, components = (2,) * stages, tuple(max(2, 8 >> k) for k in range(stages))
    sizes = (2,) * stages, _filters(shape, stages), blocks, components
    return DeepConfig(shape, *sizes, order="pixel")


def _filters(shape: Shape, stages: int) -> tuple[int, ...]:
    """K of each stage for hidden layers of 48 channels."""
    return tuple(max(1, 48 // (shape[0] * 4**k)) for k in range(stages))
