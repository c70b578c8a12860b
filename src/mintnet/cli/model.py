"""MODEL and IMAGE on the command line: weights with their data, and pictures for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from mintnet.analysis.layers import class_names
from mintnet.data import ImageData
from mintnet.models import Classifier, Flow
from mintnet.models.base import Model
from mintnet.models.storage import SHIPPED, locate, read_config
from mintnet.training import RECIPES
from mintnet.training.data import images_for


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
        if not isinstance(self.model, Flow) or len(self.model.shape) != 3:
            words = "this command is for density models of images; for classifiers there are "
            words += "verify, predict and explain, for tables sample, score, evaluate and report"
            raise ValueError(f"{self.name} is a {self.model.kind}, and {words}")
        return self.model

    @property
    def classifier(self) -> Classifier:
        """The model, if it is a classifier that has an inverse."""
        if not isinstance(self.model, Classifier):
            kinds = {"flow": "density model", "resnet": "ResNet, which has no inverse"}
            words = f"{self.name} is a {kinds.get(self.model.kind, self.model.kind)}"
            raise ValueError(f"{words}; take an invertible classifier, such as mnist-classifier")
        return self.model

    @property
    def run(self) -> Path | None:
        """The run folder that the weights belong to, if they do."""
        places = (Path(self.name).expanduser(), self.folder, self.folder.parent)
        marks = ("run.json", "metrics.jsonl")
        return next((p for p in places if any((p / mark).is_file() for mark in marks)), None)

    def label_of(self, name: str | None, option: str = "--label") -> int | None:
        """The number of a class of the model, by that number or its name; None is any."""
        names = self.class_names()
        numbers = {str(k): k for k in range(len(names))} | {name: k for k, name in enumerate(names)}
        if name is None or name in numbers:
            return numbers.get(name or "")
        known = f"{len(names)} classes, 0 to {len(names) - 1} ({', '.join(names[:20])})"
        words = known if names else f"no classes: leave {option} out"
        raise ValueError(f"{option} {name}: {self.name} has {words}")

    @property
    def label(self) -> str:
        """A short name, for titles and files."""
        return (self.run or Path(self.name)).absolute().name or "model"

    def class_names(self, data: str | None = None) -> tuple[str, ...]:
        known, classes = self.config.get("data"), getattr(self.model, "classes", 0)
        known = known if isinstance(known, dict) else {}
        names = tuple(map(str, known.get("classes") or ()))
        return names if len(names) == classes else class_names(data or known.get("name"), classes)

    def images(self, data: Path | None, name: str | None = None, split: str = "test") -> ImageData:
        """Images for this model: from the folder given, or from where it was trained."""
        found = images_for(self.config, self.name, split, name, data)
        if found.shape != self.model.shape or found.levels > self.model.levels:
            wanted, got = (f"{x.shape} with {x.levels} levels" for x in (self.model, found))
            raise ValueError(f"{self.name} is a model of images {wanted}; {found.name} has {got}")
        return found

    def picture(self, name: str, data: Path | None = None, shrink: int = 1) -> Tensor:
        """A picture (C, H, W) uint8: a place in a data set as test:7, or a file.

        Files are read as those of a folder to train on: the central square, resized. H and W are
        those of the model divided by ``shrink``, with means of pixels of an image of a data set.
        """
        path, (c, h, w) = Path(name).expanduser(), self.model.shape
        if path.is_file():
            from mintnet.data.folder import read_picture

            if c not in (1, 3) or h != w:
                raise ValueError(f"{self.name} takes images of shape {(c, h, w)}, no picture files")
            pixels = torch.tensor(read_picture(path, h // shrink, grey=c == 1)).double()
            return (pixels * ((self.model.levels - 1) / 255)).round().to(torch.uint8)
        *known, split, place = ("", "", *name.split(":"))
        if len(known) > 3 or split not in ("test", "train") or not place.isdecimal():
            words = "give a file, or a place in a data set such as mnist:test:7 or test:7"
            raise ValueError(f"there is no picture {name}; {words}")
        found = self.images(data, known[-1] or None, split)
        if int(place) >= len(found):
            raise ValueError(f"{name}: {found.name} has {split} images 0 to {len(found) - 1}")
        return avg_pool2d(found.images[int(place)].double(), shrink).round().to(torch.uint8)


def open_model(name: str, device: str = "auto") -> OpenModel:
    """The model of that name or in that place, on a device."""
    if name in RECIPES and name not in SHIPPED and not Path(name).exists():
        words = f"mintnet train {name}, then name its run folder, such as runs/{name}"
        raise ValueError(f"{name} is a preset, and no trained model of the package: {words}")
    folder = locate(name)
    model = Model.load(folder).to(pick_device(device)).requires_grad_(False)
    return OpenModel(name, folder, model, read_config(folder))


def pick_device(name: str) -> torch.device:
    """The device of that name, checked to be there."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cuda", *(f"cuda:{index}" for index in range(count))] if count else []
    known.append("cpu")  # others lack float64, or operations of the solvers
    if name not in ("auto", *known):
        raise ValueError(f"--device {name}: expected auto or what is here, {', '.join(known)}")
    return torch.device(known[0] if name == "auto" else name)
