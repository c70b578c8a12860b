"""IMAGE on the command line: a picture file, or a place in a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from mintnet.cli.model import OpenModel


def load_picture(opened: OpenModel, name: str, data: Path | None = None) -> Tensor:
    """A picture for a model, (C, H, W) uint8: from a file, or from a place in a data set."""
    import numpy as np
    import torch

    path = Path(name).expanduser()
    if not path.is_file():
        return _from_data(opened, name, data)
    c, h, w = opened.model.shape
    picture = _read_opaque(path)
    if picture.size != (w, h):
        raise ValueError(
            f"{path} has {picture.size[0]} × {picture.size[1]} pixels; {opened.name} takes "
            f"{w} × {h}"
        )
    pixels = torch.from_numpy(np.array(picture))
    pixels = pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
    if c == 1 and len(pixels) == 3:
        if not bool((pixels == pixels[:1]).all()):
            raise ValueError(f"{path} is in colour; {opened.name} takes grey pictures")
        pixels = pixels[:1]
    pixels = pixels.expand(c, h, w) if len(pixels) == 1 else pixels
    if len(pixels) != c:
        raise ValueError(f"{path} has {len(pixels)} channels; {opened.name} takes {c}")
    top = opened.model.levels - 1
    return (pixels.double() * (top / 255)).round().to(torch.uint8).contiguous()


def _read_opaque(path: Path) -> Image:
    """The picture in a file, grey (L) or in colour (RGB); raises if it is not opaque.

    What lies behind a transparent pixel is not in the file, and any choice would be a guess.
    """
    from PIL import Image

    from mintnet.data.dataset import DataError
    from mintnet.data.folder import eight_bits

    try:
        with Image.open(path) as file:
            file.load()
            see_through = file.has_transparency_data
            image = eight_bits(file, path)
            if see_through and file.mode == image.mode:
                alpha = image.convert("RGBA").getchannel("A").getextrema()
                see_through = alpha != (255, 255)
            picture = image.convert("L" if image.mode in ("L", "1") else "RGB")
    except DataError:
        raise
    except Exception as error:  # decoders of damaged pictures raise nearly anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a picture that can be read ({reason})") from None
    if see_through:
        raise ValueError(
            f"{path} is transparent in places, and what lies behind is not known; save it without "
            f"transparency, on the background that is meant"
        )
    return picture


def _from_data(opened: OpenModel, name: str, data: Path | None) -> Tensor:
    parts = name.split(":")
    if len(parts) == 2:
        parts = ["", *parts]
    if len(parts) != 3 or parts[1] not in ("test", "train") or not parts[2].isdecimal():
        raise ValueError(
            f"there is no picture {name}; give a file, or a place in a data set such as "
            f"mnist:test:7 or test:7"
        )
    found = opened.images(data, parts[0] or None, parts[1])
    place = int(parts[2])
    if place >= len(found):
        raise ValueError(f"{name}: {found.name} has {parts[1]} images 0 to {len(found) - 1}")
    return found.images[place]
