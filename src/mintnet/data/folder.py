"""Any folder of pictures: cropped to the central square, resized, in colour or grey.

All pictures below the folder are taken, sorted by path; every tenth one (10th, 20th, …) is a test
image. Hidden files are passed over; others that are no pictures are skipped with a warning.
"""

import logging
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from mintnet.data.dataset import DataError, ImageData, reason
from mintnet.data.published import existing
from mintnet.files import readable_size

_warn = cache(logging.getLogger(__name__).warning)  # once: both parts look at the same files

SIZE = 32
EVERY = 10
MOST_PIXELS = 2**26
IGNORED = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"})
# Formats with a signature of their own, so that a text file is not taken for a picture.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")


def load(split: str, folder: str | Path | None, size: int = SIZE, grey: bool = False) -> ImageData:
    """The pictures below ``folder``, (N, 3, size, size), or (N, 1, size, size) if ``grey``.

    Each is turned as its EXIF data says, laid on white where transparent, cropped to the central
    square and resized with a Lanczos filter. Where all lie in subfolders, those are their labels.
    """
    if size < 1:
        raise ValueError(f"folder: expected a size of at least 1; got {size}")
    home = existing("folder", folder)
    usable = {path: _is_picture(path, size) for path in pictures(home)}
    paths = [path for path, is_picture in usable.items() if is_picture]
    if skipped := [str(path.relative_to(home)) for path in usable if not usable[path]]:
        more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
        _warn(f"{home}: skipped {', '.join(skipped[:3])}{more}: not a picture that can be read")
    if len(paths) < EVERY:
        words = f"folder: expected at least {EVERY} pictures, as every {EVERY}th is for testing"
        raise DataError(f"{words}; {home} has {len(paths)}")
    chosen = [p for k, p in enumerate(paths, 1) if (k % EVERY == 0) == (split == "test")]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        images = list(pool.map(partial(read_picture, size=size, grey=grey), chosen))
    labels, classes = None, tuple[str, ...]()
    if all(path.parent != home for path in paths):
        below = {path: path.relative_to(home).parts[0] for path in paths}
        classes = tuple(sorted(set(below.values())))
        labels = torch.tensor([classes.index(below[path]) for path in chosen])
    stacked = torch.from_numpy(np.stack(images))
    return ImageData("folder", stacked, labels, skipped=len(skipped), classes=classes)


def pictures(folder: Path) -> list[Path]:
    """The files below ``folder`` that are not hidden, sorted by their paths."""
    found = {p.relative_to(folder): p for p in folder.rglob("*") if not p.is_dir()}
    shown = [p for p in found if not any(n[0] == "." or n.lower() in IGNORED for n in p.parts)]
    return [found[path] for path in sorted(shown, key=Path.as_posix)]


def read_picture(path: Path, size: int, grey: bool) -> NDArray[np.uint8]:
    """One picture of 8 or 16 bits, cropped and resized: (3, size, size), or (1, size, size)."""
    try:
        with open_picture(path) as opened:
            image = ImageOps.exif_transpose(opened)
            image.load()
    except DataError:
        raise
    except Exception as error:  # decoders of damaged pictures raise nearly anything
        why = "" if isinstance(error, UnidentifiedImageError) else f" ({reason(error)})"
        problem = f"it is of another kind, truncated or damaged{why}; leave it out"
        raise DataError(f"{path}: expected a picture; {problem}") from error
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(f"{path}: expected 8 or 16 bits a channel; got 32; convert it to these")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    side, (width, height) = min(image.size), image.size
    left, top = (width - side) // 2, (height - side) // 2
    image = image.crop((left, top, left + side, top + side)).convert("L" if grey else "RGB")
    image = image.resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(image).reshape(size, size, -1).transpose(2, 0, 1)


def open_picture(path: Path) -> Image.Image:
    """A picture with its header read; `DataError` where it has too many pixels to decode."""
    Image.init()
    readable_size(path)  # refuses pipes and devices
    try:
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            image = Image.open(path, formats=[name for name in _FORMATS if name in Image.OPEN])
        most = image.width * image.height <= MOST_PIXELS
    except Image.DecompressionBombError:
        most = False
    if not most:
        raise DataError(f"{path}: expected at most {MOST_PIXELS:,} pixels; got more; shrink it")
    return image


def _is_picture(path: Path, size: int) -> bool:
    """Whether the header is that of a picture; raises if the picture is too small."""
    try:
        with open_picture(path) as image:
            width, height = image.size
    except DataError:
        raise
    except Exception:  # each format has its own ways to say that this is none of it
        return False
    if min(width, height) < size:
        got = f"{width}x{height}; take --size {min(width, height)} or less, or leave it out"
        raise DataError(f"{path}: expected at least {size}x{size} pixels; got {got}")
    return True
