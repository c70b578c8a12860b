"""A set of images as one tensor of bytes, the error for files, and the images of the package.

``files/`` names the makers and licences of the latter. Digits: 1,797 images of 8×8 pixels with 17
grey levels, the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak,
1998), not shuffled: the last 360 are for testing. And the first 128 test images of MNIST (LeCun,
Cortes and Burges), to try trained models on.
"""

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

FILES = files("mintnet.data") / "files"
TRAIN = 1437
SLICE = "mnist-slice"


class DataError(ValueError):
    """Files of a data set are missing, damaged or not what their names say, in one line."""

    @classmethod
    def damaged(cls, path: Path | str, expected: str, error: BaseException) -> Self:
        why = f"it is truncated, damaged or something else ({reason(error)})"
        return cls(f"{path}: expected {expected}; {why}; get it again")

    @classmethod
    def missing_extra(cls, package: str, purpose: str) -> Self:
        return cls(f'{purpose} needs {package}, not installed: pip install "mintnet[cli]"')


def reason(error: BaseException) -> str:
    """An exception in a few words on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images of one split of a data set, with pixels in 0 … levels - 1.

    ``images``, (N, C, H, W) uint8, may be backed by a memory-mapped file, and need not be
    contiguous; ``labels`` are (N,) int64, or None; ``classes`` are their names where they have
    some. ``skipped`` files of a folder were no pictures.

    Examples:
        >>> data = ImageData("grey", torch.zeros(5, 1, 4, 6, dtype=torch.uint8), levels=2)
        >>> len(data), data.shape, data.labels, len(data.first(2))
        (5, (1, 4, 6), None, 2)
    """

    name: str
    images: Tensor
    labels: Tensor | None = None
    levels: int = 256
    skipped: int = 0
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        images, labels, problem = self.images, self.labels, ""
        if images.dtype != torch.uint8 or images.ndim != 4:
            problem = f"expected uint8 images of shape (N, C, H, W); got {_words(images)}"
        elif images.numel() == 0:
            problem = f"expected at least one image; got {_words(images)}"
        elif labels is not None and (labels.dtype, labels.shape) != (torch.int64, (len(images),)):
            problem = f"expected int64 labels of shape ({len(images)},); got {_words(labels)}"
        elif not 2 <= self.levels <= 256:
            problem = f"expected 2 to 256 levels; got {self.levels}"
        # Bytes cannot exceed 255, and a memory-mapped set is not read only to find that out.
        elif self.levels < 256 and (top := int(images.max())) >= self.levels:
            problem = f"expected pixels below {self.levels} (levels); got {top}"
        if problem:
            raise ValueError(f"{self.name}: {problem}")

    def __len__(self) -> int:
        return len(self.images)

    def first(self, count: int) -> Self:
        """The first images; all, where there are no more."""
        if count < 1:
            raise ValueError(f"expected a count of at least 1; got {count}")
        labels = None if self.labels is None else self.labels[:count]
        return replace(self, images=self.images[:count], labels=labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, c, h, w = self.images.shape
        return c, h, w


def _words(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def digits(split: str) -> ImageData:
    """The embedded digits, (1437, 1, 8, 8) or (360, 1, 8, 8), with labels 0 … 9."""
    part = slice(None, TRAIN) if split == "train" else slice(TRAIN, None)
    images, labels = _embedded("digits")
    return ImageData("digits", images[part], labels[part], levels=17)


def mnist_slice() -> ImageData:
    """128 images of 28 × 28 pixels with labels: too few for a figure, enough to see a model work.

    Examples:
        >>> mnist_slice().labels[:5].tolist()
        [7, 2, 1, 0, 4]
    """
    return ImageData(SLICE, *_embedded(SLICE))


def _embedded(name: str) -> tuple[Tensor, Tensor]:
    with (FILES / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as table:
        images, labels = table["images"][:, None], table["labels"].astype(np.int64)
    return torch.from_numpy(images), torch.from_numpy(labels)
