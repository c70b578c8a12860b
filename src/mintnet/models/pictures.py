"""Many small images as one picture that can be seen."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mintnet.files import whole_file

if TYPE_CHECKING:
    from PIL.Image import Image

LINE = (72, 100, 122, 255)  # a colour that shows between black images and between white ones
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def image_grid(
    images: Tensor,
    levels: int = 256,
    columns: int | None = None,
    width: int = 640,
    paired: bool = False,
) -> "Image":
    """Images (N, C, H, W) uint8 side by side, each pixel enlarged to a square, lines between.

    The brightest of the grey levels, levels − 1, becomes white. Without ``columns`` the grid is
    about square. Pixels are enlarged by the whole number that brings the picture nearest to
    ``width``. If ``paired``, every second row has a wider, transparent gap below it.
    """
    from PIL import Image

    if images.dim() != 4 or images.dtype != torch.uint8 or images.shape[1] not in (1, 3):
        got = f"{images.dtype} of shape {tuple(images.shape)}"
        raise ValueError(f"expected uint8 images of shape (N, 1, H, W) or (N, 3, H, W); got {got}")
    if not len(images):
        raise ValueError("expected at least one image to draw; got none")
    count, _, h, w = images.shape
    columns = columns or math.ceil(math.sqrt(count))
    rows, scale = math.ceil(count / columns), max(1, round(width / (columns * w)))
    gap, h, w = max(2, scale // 2), h * scale, w * scale
    bright = (images.cpu().to(torch.float64) * (255 / (levels - 1))).round().to(torch.uint8)
    large = bright.repeat_interleave(scale, 2).repeat_interleave(scale, 3).expand(-1, 3, -1, -1)
    tops = [row * (h + gap) + paired * (row // 2) * 2 * gap for row in range(rows)]
    canvas = np.zeros((tops[-1] + h, columns * (w + gap) - gap, 4), np.uint8)
    for k, image in enumerate(large.numpy()):
        row, left = k // columns, k % columns * (w + gap)
        top, above = tops[row], 0 if row == 0 or (paired and row % 2 == 0) else gap
        canvas[top - above : top + h, max(0, left - gap) : left + w] = LINE
        canvas[top : top + h, left : left + w, :3] = image.transpose(1, 2, 0)
    return Image.fromarray(canvas)


def save_picture(picture: "Image", path: str | Path) -> Path:
    """Write a picture, whole or not at all; the ending of the name chooses the format."""
    from PIL import Image

    path = Path(path).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected the name of a file for the picture")
    if path.suffix.lower() not in (".png", ".webp", ".tif", ".tiff"):  # no transparency: white
        colour = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", colour.size, "white"), colour)
        picture = picture.convert("RGB")
    with whole_file(path) as part:
        picture.save(part)
    return path
