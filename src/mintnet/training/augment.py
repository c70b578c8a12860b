"""Augmentation of training images: pure functions of seed, epoch and place in the data set.

Nothing here has a state or waits for the device, so that a resumed run sees the same images and a
step can be captured. Shapes: images (batch, C, H, W); index (batch,): places in the data set.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.models.noise import uniform_noise
from mintnet.training.data import stream

CUTOUT = 8


def augmented(images: Tensor, kind: str, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The images as a training step sees them; ``kind`` is the recipe's augmentation."""
    for name, function in (("crop", cropped), ("flip", flipped), ("cutout", cut_out)):
        if name in kind.split("-"):
            images = function(images, seed, epoch, index)
    return images


def flipped(images: Tensor, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """About half of the images mirrored left to right."""
    coin = uniform_noise(stream(seed, "flip"), epoch, index, (1, 1, 1)) < 0.5
    return torch.where(coin, images.flip(-1), images)


def cropped(images: Tensor, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The images moved by up to 4 pixels either way, or a seventh of small ones, on black."""
    (h, w), device = images.shape[-2:], images.device
    padding = min(4, h // 7)
    dice = uniform_noise(stream(seed, "crop"), epoch, index, (2, 1), torch.float64)
    shift = (dice * (2 * padding + 1)).long()  # 0 … 2 · padding
    rows = torch.arange(h, device=device) + shift[:, 0]
    columns = torch.arange(w, device=device) + shift[:, 1]
    sample = torch.arange(len(images), device=device)[:, None, None]
    framed = F.pad(images, (padding,) * 4)
    return framed[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def cut_out(images: Tensor, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The images with a black square of 8 pixels around a random pixel of each."""
    (h, w), device = images.shape[-2:], images.device
    centre = uniform_noise(stream(seed, "cutout"), epoch, index, (2, 1))
    y = (torch.arange(h, device=device) + 0.5 - centre[:, 0] * h).abs() < CUTOUT / 2
    x = (torch.arange(w, device=device) + 0.5 - centre[:, 1] * w).abs() < CUTOUT / 2
    return images.masked_fill((y[:, :, None] & x[:, None, :])[:, None], 0)
