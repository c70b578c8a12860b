"""A set of images as one tensor of bytes, and the error for files that are not right."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


class DataError(ValueError):
    """Files of a data set are missing, damaged or not what their names say, in one line."""


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images of one split of a data set.

    ``levels`` is the number of grey levels: pixels lie in 0 … levels - 1. ``images`` may be
    backed by a memory-mapped file, and need not be contiguous. ``skipped`` files of a folder were
    no pictures.

    Shapes: ``images`` (N, C, H, W) uint8; ``labels`` (N,) int64, or None.

    Examples:
        >>> data = ImageData("grey", torch.zeros(5, 1, 4, 6, dtype=torch.uint8), levels=2)
        >>> len(data), data.shape, data.labels
        (5, (1, 4, 6), None)
    """

    name: str
    images: Tensor
    labels: Tensor | None = None
    levels: int = 256
    skipped: int = 0

    def __post_init__(self) -> None:
        images, labels, name = self.images, self.labels, self.name
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(
                f"{name}: expected uint8 images of shape (N, C, H, W); "
                f"got {images.dtype} of shape {tuple(images.shape)}"
            )
        if images.numel() == 0:
            raise ValueError(f"{name}: expected at least one image; got {tuple(images.shape)}")
        if labels is not None and (labels.dtype != torch.int64 or labels.shape != images.shape[:1]):
            raise ValueError(
                f"{name}: expected int64 labels of shape ({len(images)},); "
                f"got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        if not 2 <= self.levels <= 256:
            raise ValueError(f"{name}: expected 2 to 256 levels; got {self.levels}")
        # Bytes cannot exceed 255, and a memory-mapped set is not read only to find that out.
        if self.levels < 256 and (top := int(images.max())) >= self.levels:
            raise ValueError(f"{name}: expected pixels below {self.levels} (levels); got {top}")

    def __len__(self) -> int:
        return len(self.images)

    def first(self, count: int) -> ImageData:
        """The first images; all, where there are no more.

        Examples:
            >>> len(ImageData("grey", torch.zeros(5, 1, 4, 6, dtype=torch.uint8)).first(2))
            2
        """
        if count < 1:
            raise ValueError(f"expected a count of at least 1; got {count}")
        labels = None if self.labels is None else self.labels[:count]
        return replace(self, images=self.images[:count], labels=labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, c, h, w = self.images.shape
        return c, h, w
