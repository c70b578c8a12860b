"""The models that the page offers, and the pictures that people bring to them."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import torch
from PIL import Image
from torch import Tensor

from mintnet.cli.model import OpenModel, open_model
from mintnet.data import ImageData
from mintnet.data.folder import read_picture
from mintnet.models.base import Model
from mintnet.models.storage import SHIPPED, locate, read_config


class Catalogue:
    """Shipped models, the run folders in ``runs``, and those that are named; each is read once."""

    def __init__(self, *names: str, runs: str | Path = "runs") -> None:
        folders = sorted(Path(runs).glob("*/")) if Path(runs).is_dir() else []
        quick_first = sorted(SHIPPED, key=lambda name: "mnist" not in name)
        found = dict.fromkeys((*names, *quick_first, *map(str, folders)))
        self._open: dict[str, OpenModel] = {}
        self._lock = Lock()
        self.kinds: dict[str, str] = {}
        for name in found:
            try:
                self.kinds[name] = str(read_config(locate(name))["kind"])
            except (ValueError, OSError):
                if name in names:
                    raise
        for name in names:
            if self.kinds[name] not in ("flow", "classifier"):
                raise ValueError(
                    f"the studio shows models of images; {name} is a {self.kinds[name]}"
                )

    def names(self, kind: str) -> list[str]:
        """The models of a kind: ``flow`` or ``classifier``."""
        return [name for name, known in self.kinds.items() if known == kind]

    def open(self, name: str) -> OpenModel:
        """A model of the list, opened once for all users."""
        if name not in self.kinds:
            raise ValueError(f"{name} is not in the list of models; pick one of it")
        with self._lock:
            if name not in self._open:
                self._open[name] = open_model(name)
                self._open[name].model.eval()
            return self._open[name]

    def test_images(self, name: str) -> ImageData:
        """The test images of a model, where they are on this machine."""
        try:
            return self.open(name).images(None)
        except (ValueError, OSError):
            raise ValueError(
                f"there are no test images of {name} on this machine; drop a picture instead"
            ) from None

    def picture(self, name: str, upload: str | None, number: float | None) -> Tensor:
        """A picture as the model takes it, (C, H, W) uint8: an upload, or else a test image."""
        model = self.open(name).model
        if upload is not None:
            return _fitted(Path(upload), model)
        data = self.test_images(name)
        if number is None or not 0 <= int(number) < len(data):
            raise ValueError(f"test images have numbers from 0 to {len(data) - 1}; got {number}")
        return data.images[int(number)]


def _fitted(path: Path, model: Model) -> Tensor:
    """A picture file, cropped and resized as pictures of a folder are in training."""
    channels, height, width = model.shape
    if channels not in (1, 3) or height != width:
        raise ValueError(f"pictures cannot be made to fit a model of shape {model.shape}")
    pixels = torch.tensor(read_picture(path, height, grey=channels == 1))
    return (pixels.double() * ((model.levels - 1) / 255)).round().to(torch.uint8)


def shown(image: Tensor, levels: int, side: int = 224) -> Image.Image:
    """An image (C, H, W) uint8 enlarged to about ``side`` pixels, each pixel a square."""
    bright = (image.cpu().double() * (255 / (levels - 1))).round().to(torch.uint8)
    pixels = bright.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    scale = max(1, round(side / max(image.shape[1:])))
    size = image.shape[2] * scale, image.shape[1] * scale
    return Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)
