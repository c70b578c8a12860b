"""Models on disk: weights as safetensors, everything else as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mintnet.bijections import MintLayer
from mintnet.files import whole_file

FORMAT = 1
WEIGHTS, CONFIG, SCORES = "model.safetensors", "config.json", "scores.safetensors"
SHIPPED: dict[str, Path] = {
    folder.name: folder
    for folder in sorted((Path(__file__).parents[1] / "weights").glob("*"))
    if (folder / CONFIG).is_file()
}
"""Models that come with the package, by the name that the command line has for them."""


class ModelFileError(ValueError):
    """A model folder that cannot be read."""


def locate(name: str | Path) -> Path:
    """The folder meant by a run folder (its last weights), a saved model or a shipped name."""
    path = Path(name).expanduser()
    for folder in (path, path / "last"):
        if (folder / CONFIG).is_file():
            return folder
    if str(name) in SHIPPED:
        return SHIPPED[str(name)]
    if (path / "run.json").is_file():
        raise ModelFileError(f"{path} is a run that has not saved any weights yet")
    empty = f"{path} holds no model: there is no {CONFIG} in it"
    raise ModelFileError(
        f"{empty if path.is_dir() else f'no model {name}'}: expected a run folder, a saved model "
        f"folder or the name of a shipped model ({', '.join(SHIPPED)})"
    )


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
    path = _existing(folder, CONFIG, "model")
    try:
        config = json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} is damaged: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFileError(f"{path} is not a configuration of format {FORMAT}")
    return {"kind": None, **config}


def load_weights(folder: str | Path, model: nn.Module) -> None:
    """Read the weights of a saved model into one of the same configuration."""
    path = _existing(folder, WEIGHTS, "weights")
    try:
        state = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is damaged: {error}") from error
    if any(tensor.dtype == torch.float64 for tensor in state.values()):
        model.double()  # a model keeps its precision; half precision is for storage alone
    load_packed_state(model, state, str(path))


def save_scores(folder: str | Path, scores: dict[str, Tensor] | None) -> None:
    """Write the scores of reference images beside the weights; None removes them."""
    path = Path(folder) / SCORES
    if scores is None:
        path.unlink(missing_ok=True)
        return
    with whole_file(path) as part:
        save_file(scores, part)
        part.chmod((path.parent / CONFIG).stat().st_mode)


def load_scores(folder: Path) -> dict[str, Tensor] | None:
    """The scores of reference images, where a model has them."""
    path = folder / SCORES
    if not path.is_file():
        return None
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is damaged: {error}; delete it") from error


def _existing(folder: str | Path, name: str, what: str) -> Path:
    if not (path := Path(folder) / name).is_file():
        raise ModelFileError(f"{folder} holds no {what}: there is no {name} in it")
    return path


def packed_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model with the masked entries of its Mint layers left out."""
    state, masks = model.state_dict(), _masks(model)
    packed = {name: t.detach().cpu()[masks.get(name, ...)] for name, t in state.items()}
    return {name: tensor.contiguous() for name, tensor in packed.items()}


@torch.no_grad()
def load_packed_state(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """The reverse of `packed_state`; raises if names or sizes differ."""
    own, masks = model.state_dict(), _masks(model)
    misfit = f"{source} does not fit its configuration"
    if different := sorted(own.keys() ^ state.keys()):
        raise ModelFileError(
            f"{misfit}: {len(different)} tensors differ in name, the first is {different[0]}"
        )
    for name, tensor in own.items():
        stored, mask = state[name], masks.get(name)
        expected = (int(mask.sum()),) if mask is not None else tuple(tensor.shape)
        if (shape := tuple(stored.shape)) != expected:
            raise ModelFileError(f"{misfit}: {name} has shape {shape}, expected {expected}")
        if stored.is_floating_point() and not bool(stored.isfinite().all()):
            raise ModelFileError(f"{source}: {name} holds NaN or infinite weights")
        if name.endswith(("variance", "running_var")) and bool((stored < 0).any()):
            raise ModelFileError(
                f"{source} is damaged: {name}, the variances of a normalization, holds negative "
                "numbers; take another copy of the file"
            )
        whole = ... if mask is None else mask.to(tensor.device)
        tensor.zero_()[whole] = stored.to(tensor.device, tensor.dtype)


def _masks(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}.weight{i}".removeprefix("."): getattr(module, f"mask{i}").cpu()
        for name, module in model.named_modules()
        if isinstance(module, MintLayer)
        for i in (1, 2, 3)
    }
