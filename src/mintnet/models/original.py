"""Checkpoints in the format that the paper's authors published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mintnet.models.classifier import Classifier
from mintnet.models.flow import Flow
from mintnet.models.mintnet import MintNetConfig
from mintnet.models.original_classifier import classifier_from_state, is_classifier
from mintnet.models.original_layers import fill_layer, stages_of
from mintnet.models.storage import ModelFileError

DEFAULT_LAMBDAS = {1: 1e-6, 3: 0.05}


def import_original(path: str | Path, logit_lambda: float | None = None) -> Flow | Classifier:
    """A density model or a classifier from one of the authors' checkpoints.

    The format is a list ``[state_dict, optimizer, epoch, step(, scheduler)]`` with keys
    ``module.layers.N.M.*`` for the lower (M = 0) and upper (M = 1) layer of pair N, squeezes
    taking a number without weights. Sizes follow from the shapes of the weights. λ comes from
    a ``.json`` of the same name beside the file, else from ``logit_lambda``, else it is 1e-6
    for grey images and 0.05 for colour. t keeps its form |t|. Masks in the file are ignored.

    Classifiers are told by their linear layer ``fc``, see `classifier_from_state`.

    Only tensors and plain containers are read from the file (``weights_only``).
    """
    path = Path(path)
    state = _read(path)
    if is_classifier(state):
        if logit_lambda is not None:
            raise ValueError(f"{path} holds a classifier, which has no logit and no λ")
        return classifier_from_state(state, path)
    pairs = _pairs(state, path)
    stages = stages_of(pairs)
    first = pairs[min(pairs)]
    shape = tuple(first["0.t"].shape[1:])
    filters = tuple(stage[0]["0.bias1"].numel() // stage[0]["0.t"].shape[1] for stage in stages)
    try:
        config = MintNetConfig(
            shape=(shape[0], shape[1], shape[2]),
            pairs=tuple(len(stage) for stage in stages),
            filters=filters,
            kernel_size=first["0.weight1"].shape[-1],
            t_form="absolute",
        )
        flow = Flow(config, _logit_lambda(path, logit_lambda, shape[0]))
    except ModelFileError:
        raise
    except ValueError as error:
        raise ModelFileError(f"{path} does not describe a MintNet: {error}") from error
    layers = iter(flow.net.layers())
    for stage in stages:
        for pair in stage:
            for side in "01":
                fill_layer(next(layers), pair, side, path)
    return flow.eval()


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ModelFileError(f"there is no file {path}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises all kinds of errors on files that are not its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "weights_only" in str(error):  # torch would have it read all the same, and run its code
            reason = "it is damaged, no file of torch's, or holds more than tensors"
        raise ModelFileError(f"{path} is not a readable checkpoint: {reason}") from error
    state = checkpoint[0] if isinstance(checkpoint, list | tuple) and checkpoint else checkpoint
    if not isinstance(state, dict):
        raise ModelFileError(f"{path} is not a checkpoint of the authors: it holds no state_dict")
    return {str(name).removeprefix("module."): value for name, value in state.items()}


def _pairs(state: dict[str, Tensor], path: Path) -> dict[int, dict[str, Tensor]]:
    """The weights of each pair under its number, with keys such as ``0.weight1``."""
    wanted = re.compile(r"layers\.(\d+)\.([01])\.(weight[123]|bias[123]|t)$")
    pairs: dict[int, dict[str, Tensor]] = {}
    for name, value in state.items():
        if match := wanted.match(name):
            pairs.setdefault(int(match[1]), {})[f"{match[2]}.{match[3]}"] = value
    if not pairs:
        raise ModelFileError(f"{path} is not a density checkpoint: no layers.N.M.weight1 in it")
    parts = [*(f"weight{i}" for i in (1, 2, 3)), *(f"bias{i}" for i in (1, 2, 3)), "t"]
    for number, pair in pairs.items():
        for key in (f"{side}.{part}" for side in "01" for part in parts):
            if key not in pair:
                raise ModelFileError(f"{path} is incomplete: layers.{number}.{key} is missing")
            value, rank = pair[key], 1 if "bias" in key else 4
            if not isinstance(value, Tensor) or value.dim() != rank:
                raise ModelFileError(f"{path}: layers.{number}.{key} is no tensor of {rank} axes")
            if not value.is_floating_point() or not bool(value.isfinite().all()):
                raise ModelFileError(f"{path}: layers.{number}.{key} holds no finite numbers")
    return pairs


def _logit_lambda(path: Path, given: float | None, channels: int) -> float:
    beside = path.with_suffix(".json")
    if beside.is_file():
        try:
            found: Any = json.loads(beside.read_text()).get("lambda_logit")
        except (ValueError, AttributeError) as error:
            raise ModelFileError(f"{beside} is not a configuration: {error}") from error
        if found is not None:
            return float(found)
    return given if given is not None else DEFAULT_LAMBDAS.get(channels, 0.05)
