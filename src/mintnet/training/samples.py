"""Grids of samples while a run trains, in at most a tenth of its time."""

from __future__ import annotations

import io
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from mintnet.files import write_bytes
from mintnet.models.flow import Flow

COUNT = 64
SEED = 1  # the same z each time, so that grids can be compared
SHARE = 0.1
LEAST = 5.0
"""Seconds that samples may take in any case."""


class Sampler:
    """Draws as many samples as the time allows, and leaves grids out that would take too long."""

    spent = 0.0
    """Seconds spent on samples so far."""
    grid_seconds: float | None = None
    """What a whole grid takes, once that is known."""

    def draw(self, flow: Flow, elapsed: float, last: bool) -> Tensor | None:
        """Samples after ``elapsed`` seconds of training, or None where there is no time for them.

        Grids before the last take half of what all of them may, so that something is left for it.
        Shape: (≤ 64, C, H, W), uint8.
        """
        budget = max(LEAST, SHARE * elapsed) * (1.0 if last else 0.5) - self.spent
        fits = None if self.grid_seconds is None else self.grid_seconds <= budget
        if budget <= 0 or (fits is False and not last):
            return None
        z, images, began, used = flow.sample_latents(COUNT, seed=SEED), [], time.monotonic(), 0.0
        drawn = 0
        try:
            while drawn < COUNT and 2 * used <= budget:
                # 1, 1, 2, 4, …: each part takes about as long as all before
                images.append(flow.decode(z[drawn:][: COUNT if fits else max(1, drawn)]))
                drawn += len(images[-1])
                used = time.monotonic() - began
        finally:
            self.spent += time.monotonic() - began
        self.grid_seconds = used * COUNT / drawn
        return torch.cat(images)


def grid(images: Tensor, levels: int, scale: int = 1) -> Tensor:
    """Images side by side in about a square, with a line between. Shape: (height, width, C)."""
    count, c, h, w = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    tiles = torch.full((rows * columns, c, h + 1, w + 1), 128.0)
    tiles[:count, :, 1:, 1:] = images.cpu() * (255 / (levels - 1))
    lines = tiles.unflatten(0, (rows, columns)).permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)
    canvas = torch.nn.functional.pad(lines, (0, 0, 0, 1, 0, 1), value=128.0)
    return canvas.round().byte().repeat_interleave(scale, 0).repeat_interleave(scale, 1)


def save_grid(path: Path, images: Tensor, levels: int) -> None:
    """Write a grid of images as a PNG file, small ones enlarged."""
    from PIL import Image

    pixels = grid(images, levels, scale=max(1, 32 // images.shape[-1])).numpy()
    packed = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(packed, "PNG")
    write_bytes(path, packed.getvalue())
