"""Classifier checkpoints in the format that the paper's authors published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mintnet.bijections import BatchNorm
from mintnet.models.classifier import PIXELS, Classifier, ClassifierConfig
from mintnet.models.labelled import Pixels
from mintnet.models.original_layers import fill_layer, stages_of
from mintnet.models.storage import ModelFileError

_MINT = [*(f"weight{i}" for i in (1, 2, 3)), *(f"bias{i}" for i in (1, 2, 3)), "t"]
_NORM = ["weight", "bias", "running_mean", "running_var"]
_PARTS = {"0": _NORM, "1": _MINT, "2": _NORM, "3": _MINT}


def is_classifier(state: dict[str, Tensor]) -> bool:
    """Whether these are the weights of a classifier: those have a linear layer at their end."""
    return any(name.startswith("fc.") for name in state)


def classifier_from_state(state: dict[str, Tensor], path: Path) -> Classifier:
    """A classifier from the weights of one of the authors' checkpoints.

    Keys are ``layers.N.M.*``: of pair N, M = 0 and 2 are batch normalizations, 1 and 3 the lower
    and the upper layer; squeezes take a number without weights; ``fc`` is the linear layer. An
    ELU stands before the pooling. Sizes follow from the shapes of the weights, but for the channels
    of an image before padding: they come from a ``.json`` of the same name beside the file, else
    they are 1 for images of 28 × 28 pixels and 3 for others.
    """
    pairs = _pairs(state, path)
    stages = stages_of(pairs)
    first = pairs[min(pairs)]
    width, height, across = first["1.t"].shape[1:]
    beside = _beside(path)
    channels = int(beside.get("channels") or (1 if (height, across) == (28, 28) else 3))
    linear, bias = state.get("fc.weight"), state.get("fc.bias")
    if linear is None or bias is None or linear.dim() != 2 or bias.shape != linear.shape[:1]:
        raise ModelFileError(f"{path} is incomplete: there is no whole linear layer fc in it")
    try:
        config = ClassifierConfig(
            width=width,
            pairs=tuple(len(stage) for stage in stages),
            filters=tuple(
                stage[0]["1.bias1"].numel() // stage[0]["1.t"].shape[1] for stage in stages
            ),
            kernel_size=first["1.weight1"].shape[-1],
            t_form="absolute",
            elu=True,
        )
        pixels = _pixels((channels, height, across))
        model = Classifier(config, pixels, len(linear))
    except ValueError as error:
        raise ModelFileError(f"{path} does not describe a classifier: {error}") from error
    if linear.shape != model.linear.weight.shape:
        raise ModelFileError(
            f"{path}: fc.weight has shape {tuple(linear.shape)}, expected "
            f"{tuple(model.linear.weight.shape)}"
        )
    norms = iter(part for part in model.chain.leaves() if isinstance(part, BatchNorm))
    layers = iter(model.layers())
    for pair in (pair for stage in stages for pair in stage):
        for norm, layer in ("01", "23"):
            _fill_norm(next(norms), pair, norm, path)
            fill_layer(next(layers), pair, layer, path)
    with torch.no_grad():
        model.linear.weight.copy_(linear)
        model.linear.bias.copy_(bias)
    return model.eval()


def _pairs(state: dict[str, Tensor], path: Path) -> dict[int, dict[str, Tensor]]:
    """The weights of each pair under its number, with keys such as ``1.weight1``."""
    wanted = re.compile(r"layers\.(\d+)\.([0-3])\.(\w+)$")
    pairs: dict[int, dict[str, Tensor]] = {}
    for name, value in state.items():
        match = wanted.match(name)
        if match and match[3] in _PARTS[match[2]]:
            pairs.setdefault(int(match[1]), {})[f"{match[2]}.{match[3]}"] = value
    if not pairs:
        raise ModelFileError(f"{path} is not a classifier checkpoint: no layers.N.M in it")
    for number, pair in pairs.items():
        for key in (f"{side}.{part}" for side, parts in _PARTS.items() for part in parts):
            if key not in pair:
                raise ModelFileError(f"{path} is incomplete: layers.{number}.{key} is missing")
            value = pair[key]
            rank = 4 if re.search(r"weight\d|\.t$", key) else 1
            if not isinstance(value, Tensor) or value.dim() != rank:
                raise ModelFileError(f"{path}: layers.{number}.{key} is no tensor of {rank} axes")
            if not value.is_floating_point() or not bool(value.isfinite().all()):
                raise ModelFileError(f"{path}: layers.{number}.{key} holds no finite numbers")
    return pairs


@torch.no_grad()
def _fill_norm(norm: BatchNorm, pair: dict[str, Tensor], side: str, path: Path) -> None:
    targets = (norm.scale, norm.shift, norm.mean, norm.variance)
    for name, target in zip(_NORM, targets, strict=True):
        value = pair[f"{side}.{name}"]
        if value.shape != target.shape:
            raise ModelFileError(
                f"{path}: {name} of a batch normalization has shape {tuple(value.shape)}, "
                f"expected {tuple(target.shape)}"
            )
        if name == "running_var" and bool((value < 0).any()):
            raise ModelFileError(f"{path}: a running variance is negative")
        target.copy_(value)


def _pixels(shape: tuple[int, int, int]) -> Pixels:
    """The images of the data set with this shape; others are brought to about −1 … 1."""
    known = next((pixels for pixels in PIXELS.values() if pixels.shape == shape), None)
    return known or Pixels(shape, 256, (0.5,), (0.5,))


def _beside(path: Path) -> dict[str, Any]:
    """What the .json of the same name says, if there is one."""
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return {}
    try:
        found = json.loads(beside.read_text())
    except ValueError as error:
        raise ModelFileError(f"{beside} is not a configuration: {error}") from error
    if not isinstance(found, dict):
        raise ModelFileError(f"{beside} is not a configuration")
    return found
