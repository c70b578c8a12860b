"""Checkpoints in the format that the paper's authors published.

A file holds ``[state_dict, optimizer, epoch, step(, scheduler)]``. Keys are
``module.layers.N.M.*``: N is a pair of layers, or a squeeze, which has no weights. In a density
model M = 0 and 1 are the lower and the upper Mint layer of a pair; in a classifier 1 and 3 are,
each with a batch normalization before it (0 and 2), and ``fc`` is the linear layer at the end.
"""

import re
from collections.abc import Iterable
from itertools import chain, groupby, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mintnet.bijections import BatchNorm, Bijection, MintLayer
from mintnet.files import is_there
from mintnet.models.base import Size
from mintnet.models.classifier import PIXELS, Classifier, ClassifierConfig, Pixels
from mintnet.models.flow import Flow
from mintnet.models.mintnet import MintNetConfig
from mintnet.models.storage import ModelFileError, check_size, check_tensor, load_torch
from mintnet.schema import read_json

State = dict[str, Tensor]
Parts = dict[str, dict[str, str]]

_MINT = {name: name for name in ("weight1", "weight2", "weight3", "bias1", "bias2", "bias3")}
_MINT["t"] = "raw_t"
_NORM = {"weight": "scale", "bias": "shift", "running_mean": "mean", "running_var": "variance"}
_DENSITY: Parts = {"0": _MINT, "1": _MINT}
_CLASSIFIER: Parts = {"0": _NORM, "1": _MINT, "2": _NORM, "3": _MINT}
"""The parts of a pair, with their tensors' names in the file and here."""
BESIDE = {"lambda_logit": float | None, "channels": Size | None}


def import_original(path: str | Path, logit_lambda: float | None = None) -> Flow | Classifier:
    """A density model or a classifier from one of the authors' checkpoints.

    λ comes from a ``.json`` of the same name beside the file, else from ``logit_lambda``, else it
    is 1e-6 for grey images and 0.05 for colour. The channels of a classifier's images come from
    the ``.json`` too, else they are 1 for 28 × 28 pixels and 3 for others.
    """
    path = Path(path)
    state, about = _read(path), path.with_suffix(".json")
    beside = read_json(about, BESIDE, ModelFileError) if is_there(about) else {}
    classifies = any(name.startswith("fc.") for name in state)
    if classifies and logit_lambda is not None:
        raise ValueError(f"{path} holds a classifier, which has no logit and no λ")
    stored = beside.get("lambda_logit")
    lam = logit_lambda if stored is None else stored
    try:
        model = _classifier(state, beside, path) if classifies else _flow(state, lam, path)
    except ModelFileError:
        raise
    except ValueError as error:
        kind = "classifier" if classifies else "MintNet"
        raise ModelFileError(f"{path} does not describe a {kind}: {error}") from error
    return model.eval()


def _flow(state: State, lam: float | None, path: Path) -> Flow:
    stages = _stages(state, _DENSITY, path)
    c, h, w = stages[0][0]["0.t"].shape[1:]
    lam = (1e-6 if c == 1 else 0.05) if lam is None else lam
    config = MintNetConfig((c, h, w), **_sizes(stages, "0"))
    check_size(path, config.least_weights())
    flow = Flow(config, lam)
    _fill(flow.net.leaves(), stages, _DENSITY, path)
    return flow


def _classifier(state: State, beside: dict[str, Any], path: Path) -> Classifier:
    stages = _stages(state, _CLASSIFIER, path)
    width, h, w = stages[0][0]["1.t"].shape[1:]
    shape = beside.get("channels") or (1 if (h, w) == (28, 28) else 3), h, w
    weight = check_tensor(state.get("fc.weight"), 2, f"{path}: the linear layer, fc.weight")
    bias = check_tensor(state.get("fc.bias"), 1, f"{path}: the linear layer, fc.bias")
    known = next((pixels for pixels in PIXELS.values() if pixels.shape == shape), None)
    config = ClassifierConfig(width, **_sizes(stages, "1"), elu=True)
    check_size(path, config.least_weights())
    model = Classifier(config, known or Pixels(shape, 256, (0.5,), (0.5,)), len(weight))
    _copy(model.linear.weight, weight, "fc.weight", path)
    _copy(model.linear.bias, bias, "fc.bias", path)
    _fill(model.chain.leaves(), stages, _CLASSIFIER, path)
    return model


def _read(path: Path) -> State:
    try:
        checkpoint = load_torch(path)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:  # torch raises all kinds of errors on files that are not its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if "weights_only" in str(error):  # torch advises to read it all the same, and run its code
            reason = "it is damaged, no file of torch's, or holds more than tensors"
        raise ModelFileError(f"{path} is not a readable checkpoint: {reason}") from error
    state = checkpoint[0] if isinstance(checkpoint, list | tuple) and checkpoint else checkpoint
    if not isinstance(state, dict):
        raise ModelFileError(f"{path} is not a checkpoint of the authors: it holds no state_dict")
    return {str(name).removeprefix("module."): value for name, value in state.items()}


def _stages(state: State, parts: Parts, path: Path) -> list[list[State]]:
    """Pairs with keys such as ``0.weight1``, in stages: a squeeze leaves its number out."""
    pairs: dict[int, State] = {}
    for name, value in state.items():
        match = re.match(r"layers\.(\d+)\.(\d)\.(\w+)$", name)
        if match and match[3] in parts.get(match[2], ()):
            pairs.setdefault(int(match[1]), {})[f"{match[2]}.{match[3]}"] = value
    if not pairs:
        raise ModelFileError(f"{path} is no checkpoint of the authors: no layers.N.M.weight1 in it")
    keys = [f"{side}.{name}" for side, names in parts.items() for name in names]
    for number, key in ((number, key) for number in pairs for key in keys):
        if key not in pairs[number]:
            raise ModelFileError(f"{path} is incomplete: layers.{number}.{key} is missing")
        rank = 4 if re.search(r"weight\d|\.t$", key) else 1
        where = f"{path}: layers.{number}.{key}"
        pairs[number][key] = check_tensor(pairs[number][key], rank, where)
    numbers = enumerate(sorted(pairs))
    groups = groupby(numbers, lambda place: place[1] - place[0])  # equal while none is left out
    return [[pairs[number] for _, number in group] for _, group in groups]


def _sizes(stages: list[list[State]], side: str) -> dict[str, Any]:
    """The arguments of a configuration that follow from the first Mint layer of each stage."""
    first = [stage[0] for stage in stages]
    return {
        "pairs": tuple(len(stage) for stage in stages),
        "filters": tuple(p[f"{side}.bias1"].numel() // p[f"{side}.t"].shape[1] for p in first),
        "kernel_size": first[0][f"{side}.weight1"].shape[-1],
        "t_form": "absolute",
    }


def _fill(leaves: Iterable[Bijection], stages: list[list[State]], parts: Parts, path: Path) -> None:
    targets = (leaf for leaf in leaves if isinstance(leaf, MintLayer | BatchNorm))
    for pair, (side, names) in product(chain.from_iterable(stages), parts.items()):
        target = next(targets)
        layer = target if isinstance(target, MintLayer) else None
        for name, own in names.items():
            value, where = pair[f"{side}.{name}"], getattr(target, own)
            value = _channel_major(value, name, layer) if layer else value
            title = f"{name} of {layer.name if layer else 'a batch normalization'}"
            _copy(where[None] if name == "t" else where, value, title, path)


def _channel_major(value: Tensor, name: str, layer: MintLayer) -> Tensor:
    """Hidden channels come in the order k · C + c and are kept as c · K + k."""
    c, k = layer.channels, layer.filters
    copies = {"weight1": (k, 1), "weight2": (k, k), "weight3": (1, k), "bias1": (k,), "bias2": (k,)}
    for axis, count in enumerate(copies.get(name, ())):
        if value.shape[axis] == count * c:
            grouped = value.unflatten(axis, (count, c)).transpose(axis, axis + 1)
            value = grouped.flatten(axis, axis + 1)
    return value


@torch.no_grad()
def _copy(target: Tensor, value: Tensor, name: str, path: Path) -> None:
    if value.shape != target.shape:
        wanted, got = tuple(target.shape), tuple(value.shape)
        raise ModelFileError(f"{path}: {name} has shape {got}, expected {wanted}")
    target.copy_(value)
