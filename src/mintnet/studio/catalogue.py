"""The models that the page offers, and the pictures that people bring to them."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from torch import Tensor

from mintnet.cli.model import OpenModel, open_model
from mintnet.data import ImageData
from mintnet.models.storage import SHIPPED, locate, read_config


class Catalogue:
    """Shipped models, the run folders in ``runs``, and those that are named; each is read once."""

    def __init__(self, *names: str) -> None:
        runs = map(str, sorted(Path("runs").glob("*/")))
        quick_first = sorted(SHIPPED, key=lambda name: "mnist" not in name)
        self._open: dict[str, OpenModel] = {}
        self._lock = Lock()
        self.kinds: dict[str, str] = {}
        for name in dict.fromkeys((*names, *quick_first, *runs)):
            try:
                kind = self.kinds[name] = str(read_config(locate(name))["kind"])
            except (ValueError, OSError):
                if name in names:
                    raise
                continue
            if name in names and kind not in ("flow", "classifier"):
                raise ValueError(f"the studio shows models of images; {name} is a {kind}")

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
        if upload is not None:
            return self.open(name).picture(upload)
        data = self.test_images(name)
        if number is None or not 0 <= int(number) < len(data):
            raise ValueError(f"test images have numbers from 0 to {len(data) - 1}; got {number}")
        return data.images[int(number)]
