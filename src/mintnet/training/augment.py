"""Augmentation of training images: pure functions of seed, epoch and place.

Nothing here has a state or waits for the device, so a run that is resumed sees the same images, and
a step can be recorded.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.models.noise import uniform_noise
from mintnet.training.order import stream

AUGMENTATIONS = ("none", "flip", "crop", "crop-flip")


def augmented(images: Tensor, kind: str, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The images as a training step sees them.

    Args:
        images: (batch, C, H, W).
        kind: of `AUGMENTATIONS`.
        seed: of the run.
        epoch: from 0.
        index: (batch,) the images' places in their data set.

    Examples:
        >>> images = torch.ones(2, 1, 7, 7, dtype=torch.uint8)
        >>> augmented(images, "crop-flip", 0, 0, torch.arange(2)).shape
        torch.Size([2, 1, 7, 7])
    """
    if "crop" in kind:
        images = cropped(images, seed, epoch, index)
    if "flip" in kind:
        images = flipped(images, seed, epoch, index)
    return images


def flipped(images: Tensor, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The images, about half of them mirrored left to right. Shapes: (batch, C, H, W), (batch,).

    Examples:
        >>> images = torch.tensor([[[[1, 2]]]]).repeat(6, 1, 1, 1)
        >>> flipped(images, 0, 0, torch.arange(6))[:, 0, 0, 0].unique().tolist()
        [1, 2]
    """
    coin = uniform_noise(stream(seed, "flip"), epoch, index, (1, 1, 1)) < 0.5
    return torch.where(coin, images.flip(-1), images)


def cropped(
    images: Tensor, seed: int, epoch: int | Tensor, index: Tensor, padding: int | None = None
) -> Tensor:
    """The images cut out of black frames at random: moved by up to ``padding`` either way.

    A padding of 4 is usual for 28 and 32 pixels; where none is given it is a seventh of the
    height, at most 4, so that small images keep what is on them.

    Shapes: (batch, C, H, W), (batch,).

    Examples:
        >>> images = torch.arange(1, 17).reshape(1, 1, 4, 4).repeat(99, 1, 1, 1)
        >>> moved = cropped(images, 0, 0, torch.arange(99), padding=1)
        >>> moved[:, 0, 1, 1].unique().tolist()  # any of the nine around 6, itself included
        [1, 2, 3, 5, 6, 7, 9, 10, 11]
    """
    _, _, h, w = images.shape
    padding = min(4, h // 7) if padding is None else padding
    dice = uniform_noise(stream(seed, "crop"), epoch, index, (2, 1), torch.float64)
    shift = (dice * (2 * padding + 1)).long()  # 0 … 2 · padding
    rows = torch.arange(h, device=images.device) + shift[:, 0]
    columns = torch.arange(w, device=images.device) + shift[:, 1]
    framed = F.pad(images, (padding,) * 4)
    sample = torch.arange(len(images), device=images.device)[:, None, None]
    return framed[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
