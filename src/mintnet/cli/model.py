"""MODEL on the command line: the weights, what is known about them, and their data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mintnet.data import ImageData
from mintnet.models import Flow
from mintnet.models.locate import load_flow, locate
from mintnet.models.storage import read_config


@dataclass(frozen=True)
class OpenModel:
    """A density model with its configuration.

    Attributes:
        name: as it was asked for.
        folder: where its weights are.
        flow: the model.
        config: what was saved with it.
    """

    name: str
    folder: Path
    flow: Flow
    config: dict[str, Any]

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.flow.parameters()).device

    @property
    def run(self) -> Path | None:
        """The run folder that the weights belong to, if they do."""
        return run_of(self.name, self.folder)

    @property
    def label(self) -> str:
        """A short name, for titles and files."""
        return label_of(self.name, self.folder)

    def images(
        self, folder: Path | None, name: str | None, split: str = "test", few: bool = False
    ) -> ImageData:
        """Images for this model: from the folder given, or from where it was trained.

        Args:
            folder: with the files of the data set.
            name: of the data set; the model's own if not given.
            split: test or train.
            few: take those of the package where no folder is known; not for figures.
        """
        from mintnet.training.data import images_for

        data = images_for(self.config, self.name, split, name, folder, few)
        if data.shape != self.flow.shape or data.levels > self.flow.levels:
            raise ValueError(
                f"{self.name} is a model of images of shape {self.flow.shape} with "
                f"{self.flow.levels} levels; {data.name} has {data.shape} and {data.levels}"
            )
        return data


def run_of(name: str, folder: Path) -> Path | None:
    """The run folder that weights in a folder belong to, if they do."""
    places = (Path(name).expanduser(), folder, folder.parent)
    marks = ("run.json", "metrics.jsonl", "metrics.csv")
    return next((p for p in places if any((p / mark).is_file() for mark in marks)), None)


def label_of(name: str, folder: Path) -> str:
    """A short name, for titles and files."""
    return (run_of(name, folder) or Path(name)).absolute().name or "model"


def open_model(name: str, device: str = "auto") -> OpenModel:
    """The model of that name or in that place, ready for exact arithmetic on a device."""
    folder = locate(name)
    config = read_config(folder)
    if config.get("kind") in ("classifier", "resnet"):
        raise ValueError(
            f"{name} is a {config['kind']}, and this command is for density models; for "
            f"classifiers there are train, evaluate, verify, explain, info and report"
        )
    config = read_config(folder, "flow")
    flow = load_flow(name).to(pick_device(device))
    for parameter in flow.parameters():
        parameter.requires_grad_(False)
    return OpenModel(name, folder, flow, config)


def pick_device(name: str) -> torch.device:
    """The device of that name, checked to be there; TF32 is switched off on it.

    Examples:
        >>> pick_device("cpu")
        device(type='cpu')
        >>> pick_device("abacus")
        Traceback (most recent call last):
        ValueError: unknown device 'abacus'; expected cpu, cuda or auto
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):  # others lack float64, or operations of the solvers
        raise ValueError(f"unknown device {name!r}; expected cpu, cuda or auto")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(f"--device {name}: there is no such GPU here; use --device cpu")
    torch.backends.cudnn.allow_tf32 = False  # a certificate would hold for another function
    torch.backends.cuda.matmul.allow_tf32 = False
    return device
