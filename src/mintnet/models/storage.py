"""Models on disk: weights as safetensors, everything else as JSON."""

import json
import zipfile
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mintnet.files import is_there, readable_size, whole_file
from mintnet.schema import check, read_json

FORMAT = 1
FLOATS = ("F16", "BF16", "F32", "F64")
OTHERS = {torch.int64: ("I64",), torch.bool: ("BOOL",)}
WEIGHTS, CONFIG, SCORES = "model.safetensors", "config.json", "scores.safetensors"
RANKS = {"statistics": 2, "draws": 0, "edges": 1, "texture": 2, "position": 3}  # axes of scores
FEWEST = 20  # reference images
_configs = sorted((Path(__file__).parents[1] / "weights").glob(f"*/{CONFIG}"))
SHIPPED = {config.parent.name: config.parent for config in _configs}  # models of the package


class ModelFileError(ValueError):
    """A model folder that cannot be read."""


SAVED: dict[str, Any] = {"format": Literal[1], "kind": str, "preset": str | None}
SAVED |= {"validation": float | None, "data": dict | str | None}  # of every kind of model


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name, with the known one that is most like it."""
    return "".join(f"; did you mean {near}?" for near in get_close_matches(name, list(known), 1))


def locate(name: str | Path) -> Path:
    """The folder of a run (its last weights), a saved model, a shipped or a hub's model."""
    path = Path(name).expanduser()
    for folder in (path, path / "last"):
        if is_there(folder / CONFIG):
            return folder
    if str(name) in SHIPPED:
        return SHIPPED[str(name)]
    if is_there(path / "run.json"):
        raise ModelFileError(f"{path} is a run that has not saved any weights yet")
    from mintnet.models.hub import fetch, is_hub_name

    if is_hub_name(name):
        return fetch(str(name))
    empty = f"{path} holds no model: there is no {CONFIG} in it"
    what = f"{empty if path.is_dir() else f'no model {name}'}: expected a run folder"
    kinds = f"the name of a shipped model ({', '.join(SHIPPED)}) or user/model of the hub"
    raise ModelFileError(f"{what}, a saved model folder, {kinds}{did_you_mean(str(name), SHIPPED)}")


def shipped(name: str, kind: str) -> Path:
    """The folder of a shipped model, called ``mnist`` or ``mnist-classifier``."""
    known = {n: folder for n, folder in SHIPPED.items() if read_config(folder)["kind"] == kind}
    for candidate in (name, f"{name}-{kind}"):
        if candidate in known:
            return known[candidate]
    there = ", ".join(known) or "none yet: train one, or load a folder"
    raise ModelFileError(f"no {kind} {name!r} comes with the package; there are {there}")


def save_model(folder: str | Path, model: nn.Module, config: dict[str, Any]) -> None:
    """Write weights and configuration into a folder, each file whole or not at all."""
    folder = Path(folder)
    with whole_file(folder / CONFIG) as text, whole_file(folder / WEIGHTS) as weights:
        save_file(packed_state(model), weights)
        text.write_text(json.dumps({"format": FORMAT, **config}, indent=1) + "\n")
        weights.chmod(text.stat().st_mode)  # safetensors lets nobody else read it


def read_config(folder: str | Path) -> dict[str, Any]:
    """The configuration of a saved model."""
    config: dict[str, Any] = read_json(Path(folder, CONFIG), SAVED, ModelFileError)
    if isinstance(data := config.get("data"), dict):
        try:
            check(data, dict.fromkeys(("name", "folder", "version"), str | None), "data")
        except ValueError as error:
            raise ModelFileError(f"{Path(folder, CONFIG)}: {error}") from error
    return config


def check_size(path: Path, weights: int) -> None:
    """Raise unless a file is large enough for so many weights, of two bytes each."""
    try:
        size = readable_size(path)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    if 2 * weights > size:
        fits = f"expected a network that fits into {path.name}, which has {size:,} bytes"
        raise ValueError(f"net: {fits}; got one of at least {weights:,} weights")


@torch.no_grad()
def load_weights(folder: str | Path, model: nn.Module) -> None:
    """Read the weights of a saved model into one of the same configuration."""
    path, masks = Path(folder, WEIGHTS), masks_of(model)
    try:
        with safe_open(path, "pt") as file:
            stored = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            if any(part.get_dtype() == "F64" for part in stored.values()):
                model.double()  # a model keeps its precision; half precision is for storage alone
            own, unlike = model.state_dict(), f"{path} does not fit {CONFIG}"
            if different := sorted(own.keys() ^ stored.keys()):
                names = f"{len(different)} tensors differ in name, the first is {different[0]}"
                raise ModelFileError(f"{unlike}: {names}; or an earlier version made it")
            for name, tensor in own.items():
                mask, kinds = masks.get(name), OTHERS.get(tensor.dtype, FLOATS)
                shape = [int(mask.sum())] if mask is not None else list(tensor.shape)
                kind, got = stored[name].get_dtype(), stored[name].get_shape()
                if got == list(tensor.shape):  # files may hold the masked entries too
                    mask, shape = None, got
                if kind not in kinds or got != shape:
                    wanted = f"expected {' or '.join(kinds)} of shape {shape}"
                    raise ModelFileError(f"{unlike}: {name}: {wanted}; got {kind} of shape {got}")
                value = file.get_tensor(name).to(tensor)
                check_numbers(value, f"{path}: {name}")
                tensor.zero_()[... if mask is None else mask.to(tensor.device)] = value
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is damaged: {' '.join(str(error).split())}") from error


def load_torch(path: Path) -> Any:
    """What a file of ``torch.save`` holds, tensors and plain data: none of its code is run."""
    size = readable_size(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            if sum(info.file_size for info in file.infolist()) > size:
                raise ValueError("it would unpack to more than its size, as no file of torch does")
            if file.testzip() is not None:  # torch does not look at the checksums in it
                raise ValueError("its contents do not match their checksums")
    return torch.load(path, map_location="cpu", weights_only=True)


def check_tensor(value: Any, rank: int, name: str) -> Tensor:
    """The tensor, dense floating-point numbers with so many axes that float32 holds."""
    words, fits = type(value).__name__, isinstance(value, Tensor)
    if isinstance(value, Tensor):
        words = f"{value.dtype} with {value.dim()} axes ({value.layout}, {value.device})"
        fits = value.layout == torch.strided and value.device.type == "cpu" and value.dim() == rank
        fits = fits and value.is_floating_point() and value.element_size() > 1
        fits = fits and value.nbytes <= value.untyped_storage().nbytes()  # not expanded
    if not fits:
        wanted = f"a tensor of {rank} axes, dense floating-point numbers"
        raise ModelFileError(f"{name}: expected {wanted}; got {words}")
    value = value.float()
    check_numbers(value, name)
    return value  # type: ignore[no-any-return]


def check_numbers(value: Tensor, name: str) -> None:
    """Raise unless all are finite, and those of a variance not negative."""
    if not bool(value.isfinite().all()):
        raise ModelFileError(f"{name}: expected finite numbers; got NaN or infinite ones")
    if name.endswith(("variance", "running_var")) and bool((value < 0).any()):
        raise ModelFileError(f"{name}: expected variances; got negative numbers")


def save_scores(folder: str | Path, scores: dict[str, Tensor] | None) -> None:
    """Write the scores of reference images beside the weights; None removes them."""
    path = Path(folder, SCORES)
    if scores is None:
        path.unlink(missing_ok=True)
        return
    with whole_file(path) as part:
        save_file(scores, part)
        part.chmod(Path(folder, CONFIG).stat().st_mode)


def load_scores(folder: Path) -> dict[str, Tensor] | None:
    """The scores of reference images, where a model has them."""
    if not is_there(path := folder / SCORES):
        return None
    try:
        readable_size(path)  # refuses pipes and devices
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is damaged: {error}; delete it") from error
    if found.keys() - RANKS.keys() or "statistics" not in found:
        raise ModelFileError(f"{path}: expected {', '.join(RANKS)}; got {', '.join(found)}"[:300])
    return {name: check_tensor(t, RANKS[name], f"{path}: {name}") for name, t in found.items()}


def packed_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model; entries of weights that a mask holds at 0 are left out."""
    state, masks = model.state_dict(), masks_of(model)
    packed = {name: t.detach().cpu()[masks.get(name, ...)] for name, t in state.items()}
    return {name: tensor.contiguous() for name, tensor in packed.items()}


def masks_of(model: nn.Module) -> dict[str, Tensor]:
    """The masks of weights by their names: ``mask`` or ``mask1`` of a module for its ``weight``."""
    return {
        f"{name}.{buffer.replace('mask', 'weight')}".removeprefix("."): mask.cpu()
        for name, module in model.named_modules()
        for buffer, mask in module.named_buffers(recurse=False)
        if buffer.startswith("mask")
    }
