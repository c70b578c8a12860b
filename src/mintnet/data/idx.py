"""MNIST: the idx format, plain or packed with gzip.

An idx file of bytes starts with two zero bytes, the type (8: unsigned byte), the number of
dimensions, and each dimension as a big-endian 32-bit integer; the entries follow.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mintnet.data.dataset import DataError, ImageData
from mintnet.data.published import MNIST, content, existing, find, refuse_renamed

_PARTS = {"train": "train", "test": "t10k"}
_MAGIC = {"images": 2051, "labels": 2049}


def locate(name: str, folder: Path) -> Path | None:
    """The file published as ``name`` in or below ``folder``, packed or not, or None."""
    dotted = name.replace("-idx", ".idx")
    names = (name, f"{name}.gz", dotted, f"{dotted}.gz")
    return find("mnist", folder, names, "MNIST/raw", "raw")


def parse_idx(data: bytes | bytearray, kind: str, source: str | Path = "idx") -> NDArray[np.uint8]:
    """The array, (N, H, W) or (N,), in an idx file of ``kind`` images or labels.

    Examples:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels").tolist()
        [7, 8, 9]
    """
    magic = int.from_bytes(data[:4], "big")
    if len(data) < 4 or magic != _MAGIC[kind]:
        came = f"a file that starts with {bytes(data[:8])!r}; get it again"
        if magic in _MAGIC.values():  # those of the other kind
            other = "labels" if kind == "images" else "images"
            came = f"{other} (magic {magic}); are two files swapped?"
        raise DataError(f"{source}: expected idx {kind} (magic {_MAGIC[kind]}); got {came}")
    start = 4 + 4 * (magic & 0xFF)
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    size = start + math.prod(shape)
    if len(data) != size or len(data) < start:
        raise DataError(
            f"{source}: expected {max(size, start)} bytes for {kind} of shape {shape}; "
            f"got {len(data)}; get the file again"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def load(split: str, folder: str | Path | None) -> ImageData:
    """MNIST, or another set in the same files, (N, 1, 28, 28) with labels 0 … 9."""
    home, part, arrays = existing("mnist", folder), _PARTS[split], {}
    for kind, rank in (("images", 3), ("labels", 1)):
        name = f"{part}-{kind}-idx{rank}-ubyte"
        if (path := locate(name, home)) is None:
            raise DataError(
                f"mnist: expected {name}[.gz] in {home} or {home / 'mnist'}; it is not there; "
                f"`mintnet data get mnist {home}` downloads it"
            )
        data = content(path)
        arrays[kind] = parse_idx(data, kind, path)
        refuse_renamed(path, name, data, MNIST)
        if kind == "images" and arrays[kind].shape[1:] != (28, 28):
            h, w = arrays[kind].shape[1:]
            raise DataError(f"{path}: expected images of 28x28 pixels; got {h}x{w}")
        if kind == "labels" and arrays[kind].max(initial=0) > 9:
            raise DataError(f"{path}: expected labels 0 to 9; got {arrays[kind].max()}")
    images, labels = arrays.values()
    if len(images) != len(labels) or len(images) == 0:
        raise DataError(
            f"mnist: expected as many labels as images, and at least one; the {part} files in "
            f"{home} hold {len(images)} images and {len(labels)} labels"
        )
    classes = torch.from_numpy(labels.astype(np.int64))
    return ImageData("mnist", torch.from_numpy(images[:, None]), classes)
