"""MODEL and IMAGE on the command line: weights with their data, and pictures for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mintnet.analysis.layers import class_names
from mintnet.data import ImageData
from mintnet.models import Classifier, Flow
from mintnet.models.base import Model
from mintnet.models.storage import locate, read_config


@dataclass(frozen=True)
class OpenModel:
    """A model of any kind with its configuration."""

    name: str  # as it was asked for
    folder: Path  # where its weights are
    model: Model
    config: dict[str, Any]  # what was saved with it

    @property
    def flow(self) -> Flow:
        """The model, if it is a density model."""
        if not isinstance(self.model, Flow):
            raise ValueError(
                f"{self.name} is a {self.model.kind}, and this command is for density models; for "
                f"classifiers there are train, evaluate, verify, explain, info and report"
            )
        return self.model

    @property
    def classifier(self) -> Classifier:
        """The model, if it is a classifier that has an inverse."""
        if isinstance(self.model, Flow):
            raise ValueError(f"{self.name} is a density model, where a classifier is expected")
        if not isinstance(self.model, Classifier):
            raise ValueError(
                f"{self.name} is a ResNet, which has no inverse; take an invertible classifier, "
                f"such as one of the preset mnist-classifier"
            )
        return self.model

    @property
    def run(self) -> Path | None:
        """The run folder that the weights belong to, if they do."""
        places = (Path(self.name).expanduser(), self.folder, self.folder.parent)
        marks = ("run.json", "metrics.jsonl")
        return next((p for p in places if any((p / mark).is_file() for mark in marks)), None)

    @property
    def label(self) -> str:
        """A short name, for titles and files."""
        return (self.run or Path(self.name)).absolute().name or "model"

    def class_names(self, data: str | None = None) -> tuple[str, ...]:
        """What a classifier's classes are called."""
        known = self.config.get("data")
        own = known.get("name") if isinstance(known, dict) else None
        return class_names(data or own, getattr(self.model, "classes", 0))

    def images(
        self, folder: Path | None, name: str | None = None, split: str = "test"
    ) -> ImageData:
        """Images for this model: from the folder given, or from where it was trained."""
        from mintnet.training.data import images_for

        data = images_for(self.config, self.name, split, name, folder, few=True)
        if data.shape != self.model.shape or data.levels > self.model.levels:
            raise ValueError(
                f"{self.name} is a model of images of shape {self.model.shape} with "
                f"{self.model.levels} levels; {data.name} has {data.shape} and {data.levels}"
            )
        return data

    def picture(self, name: str, data: Path | None = None) -> Tensor:
        """A picture (C, H, W) uint8: from a file, or from a place in a data set as test:7."""
        path = Path(name).expanduser()
        if path.is_file():
            return self._from_file(path)
        *known, split, place = ("", "", *name.split(":"))
        if len(known) > 3 or split not in ("test", "train") or not place.isdecimal():
            raise ValueError(
                f"there is no picture {name}; give a file, or a place in a data set such as "
                f"mnist:test:7 or test:7"
            )
        found = self.images(data, known[-1] or None, split)
        if int(place) >= len(found):
            raise ValueError(f"{name}: {found.name} has {split} images 0 to {len(found) - 1}")
        return found.images[int(place)]

    def _from_file(self, path: Path) -> Tensor:
        import numpy as np

        c, h, w = self.model.shape
        pixels = torch.from_numpy(_read_opaque(path)).permute(2, 0, 1)
        if pixels.shape[1:] != (h, w):
            size = f"{pixels.shape[2]} × {pixels.shape[1]} pixels"
            raise ValueError(f"{path} has {size}; {self.name} takes {w} × {h}")
        if c == 1 and not bool((pixels == pixels[:1]).all()):
            raise ValueError(f"{path} is in colour; {self.name} takes grey pictures")
        if c not in (1, 3):
            raise ValueError(f"{path} has 3 channels; {self.name} takes {c}")
        levels = np.round(pixels[:c].numpy() * ((self.model.levels - 1) / 255))
        return torch.from_numpy(levels.astype(np.uint8))


def _read_opaque(path: Path) -> Any:
    """The picture in a file as an array (H, W, 3) of bytes; raises if it is not opaque.

    What lies behind a transparent pixel is not in the file, and any choice would be a guess.
    """
    import numpy as np
    from PIL import Image

    from mintnet.data.dataset import DataError
    from mintnet.data.folder import eight_bits

    try:
        with Image.open(path) as file:
            file.load()
            see_through = file.has_transparency_data
            image = eight_bits(file, path)
            if see_through and file.mode == image.mode:
                alpha = image.convert("RGBA").getchannel("A").getextrema()
                see_through = alpha != (255, 255)
            pixels = np.array(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # decoders of damaged pictures raise nearly anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a picture that can be read ({reason})") from None
    if see_through:
        raise ValueError(
            f"{path} is transparent in places, and what lies behind is not known; save it without "
            f"transparency, on the background that is meant"
        )
    return pixels


def open_model(name: str, device: str = "auto") -> OpenModel:
    """The model of that name or in that place, on a device."""
    folder = locate(name)
    model = Model.load(folder).to(pick_device(device)).requires_grad_(False)
    return OpenModel(name, folder, model, read_config(folder))


def pick_device(name: str) -> torch.device:
    """The device of that name, checked to be there."""
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
    return device
