"""Grids of samples while a run trains, in at most a tenth of its time."""

from __future__ import annotations

import io
import math
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mintnet.files import write_bytes
from mintnet.models.flow import Flow

SEED = 1  # the same z each time, so that grids can be compared
SHARE = 0.1
LEAST = 5.0
"""Seconds that samples may take in any case."""


class Sampler:
    """Draws as many samples as the time allows, and leaves grids out that would take too long."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.spent = 0.0
        """Seconds spent on samples so far."""
        self._grid: float | None = None  # what a whole grid takes, once that is known

    def draw(self, flow: Flow, elapsed: float, last: bool) -> Tensor | None:
        """Samples after ``elapsed`` seconds of training, or None where there is no time for them.

        Grids before the last take half of what all of them may, so that something is left for it.
        Shape: (≤ count, C, H, W), uint8.
        """
        budget = max(LEAST, SHARE * elapsed) * (1.0 if last else 0.5) - self.spent
        if budget <= 0 or (not last and self._grid is not None and self._grid > budget):
            return None
        z, images, began = flow.sample_latents(self.count, seed=SEED), [], time.monotonic()
        drawn, whole = 0, self._grid is not None and self._grid <= budget
        try:
            while drawn < self.count:  # 1, 1, 2, 4, …: each takes about as long as all before
                size = self.count if whole else max(1, drawn)
                images.append(flow.decode(z[drawn : drawn + size]))
                drawn += len(images[-1])
                used = time.monotonic() - began
                if 2 * used > budget:
                    break
        finally:
            used = time.monotonic() - began
            self.spent += used
        self._grid = used * self.count / drawn
        return torch.cat(images)


def grid(images: Tensor, levels: int, scale: int = 1) -> NDArray[np.uint8]:
    """Images side by side in about a square, with a line between. Shape: (height, width, C)."""
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
