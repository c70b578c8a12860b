"""The digits that ship with the package: 1,797 images of 8×8 pixels with 17 grey levels.

They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, UCI
Machine Learning Repository, 1998; CC BY 4.0), not shuffled: the last 360 are for testing.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from mintnet.data.dataset import ImageData

TRAIN = 1437


def load(split: str) -> ImageData:
    """The embedded digits, (1437, 1, 8, 8) or (360, 1, 8, 8), with labels 0 … 9."""
    part = slice(None, TRAIN) if split == "train" else slice(TRAIN, None)
    images, labels = embedded("digits.npz")
    return ImageData("digits", images[part], labels[part], levels=17)


def embedded(name: str) -> tuple[Tensor, Tensor]:
    """Images (N, 1, H, W) and labels (N,) of a file that ships with the package."""
    path = files("mintnet.data").joinpath("files", name)
    with path.open("rb") as file, np.load(file, allow_pickle=False) as table:
        images, labels = table["images"][:, None], table["labels"].astype(np.int64)
    return torch.from_numpy(images), torch.from_numpy(labels)
