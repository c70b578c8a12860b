"""Images that ship with the package; files/ names their makers and licences.

Digits: 1,797 images of 8×8 pixels with 17 grey levels, the test part of "Optical Recognition of
Handwritten Digits" (Alpaydin and Kaynak, 1998), not shuffled: the last 360 are for testing. And the
first 128 test images of MNIST (LeCun, Cortes and Burges), to try trained models on.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from mintnet.data.dataset import ImageData

TRAIN = 1437
SLICE = "mnist-slice"


def load(split: str) -> ImageData:
    """The embedded digits, (1437, 1, 8, 8) or (360, 1, 8, 8), with labels 0 … 9."""
    part = slice(None, TRAIN) if split == "train" else slice(TRAIN, None)
    images, labels = _embedded("digits.npz")
    return ImageData("digits", images[part], labels[part], levels=17)


def mnist_slice() -> ImageData:
    """128 images of 28 × 28 pixels with labels: too few for a figure, enough to see a model work.

    Examples:
        >>> mnist_slice().labels[:5].tolist()
        [7, 2, 1, 0, 4]
    """
    return ImageData(SLICE, *_embedded(f"{SLICE}.npz"))


def _embedded(name: str) -> tuple[Tensor, Tensor]:
    path = files("mintnet.data").joinpath("files", name)
    with path.open("rb") as file, np.load(file, allow_pickle=False) as table:
        images, labels = table["images"][:, None], table["labels"].astype(np.int64)
    return torch.from_numpy(images), torch.from_numpy(labels)
