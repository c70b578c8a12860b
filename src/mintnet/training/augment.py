"""Augmentation of training images: pure functions of seed, epoch and place in the data set.

Nothing here has a state or waits for the device, so that a resumed run sees the same images and a
step can be captured.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.models.noise import uniform_noise
from mintnet.training.data import stream

CUTOUT = 8


def augmented(images: Tensor, kind: str, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The images (batch, C, H, W) as a step sees them; index (batch,): places in the data set."""
    for name, function in (("crop", cropped), ("flip", flipped), ("cutout", cut_out)):
        if name in kind.split("-"):
            images = function(images, seed, epoch, index)
    return images


def flipped(images: Tensor, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The images, about half of them mirrored left to right."""
    coin = uniform_noise(stream(seed, "flip"), epoch, index, (1, 1, 1)) < 0.5
    return torch.where(coin, images.flip(-1), images)


def cropped(images: Tensor, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The images moved by up to 4 pixels either way, or a seventh of small ones, on black."""
    _, _, h, w = images.shape
    padding = min(4, h // 7)
    dice = uniform_noise(stream(seed, "crop"), epoch, index, (2, 1), torch.float64)
    shift = (dice * (2 * padding + 1)).long()  # 0 … 2 · padding
    rows = torch.arange(h, device=images.device) + shift[:, 0]
    columns = torch.arange(w, device=images.device) + shift[:, 1]
    framed = F.pad(images, (padding,) * 4)
    sample = torch.arange(len(images), device=images.device)[:, None, None]
    return framed[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def cut_out(images: Tensor, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The images with a black square of 8 pixels around a random pixel of each."""
    _, _, h, w = images.shape
    centre = uniform_noise(stream(seed, "cutout"), epoch, index, (2, 1))
    y = (torch.arange(h, device=images.device) + 0.5 - centre[:, 0] * h).abs() < CUTOUT / 2
    x = (torch.arange(w, device=images.device) + 0.5 - centre[:, 1] * w).abs() < CUTOUT / 2
    return images.masked_fill((y[:, :, None] & x[:, None, :])[:, None], 0)
