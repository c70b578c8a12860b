"""A plain grid of images as a PNG file, to watch a run by."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mintnet.files import write_bytes


def grid(images: Tensor, levels: int, scale: int = 1) -> NDArray[np.uint8]:
    """Images side by side in about a square, with a line between. Shape: (height, width, C).

    Examples:
        >>> grid(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), levels=17).shape
        (19, 19, 1)
    """
    count, c, h, w = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    canvas = torch.full((c, rows * (h + 1) + 1, columns * (w + 1) + 1), 128.0)
    for k, image in enumerate(images.cpu()):
        top, left = k // columns * (h + 1) + 1, k % columns * (w + 1) + 1
        canvas[:, top : top + h, left : left + w] = image * (255 / (levels - 1))
    canvas = canvas.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
    return canvas.round().to(torch.uint8).permute(1, 2, 0).numpy()


def save_grid(path: Path, images: Tensor, levels: int) -> None:
    """Write a grid of images as a PNG file, small ones enlarged."""
    from PIL import Image

    pixels = grid(images, levels, scale=max(1, 32 // images.shape[-1]))
    packed = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(packed, "PNG")
    write_bytes(path, packed.getvalue())
