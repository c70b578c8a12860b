"""ImageNet 32×32, in its two published versions, which differ by about 0.25 bits per dimension.

- ``imagenet32-old``: the older one, of the papers on density models, .npy files without labels;
- ``imagenet32-box``: the anti-aliased one, which is easier, pickles or .npz with labels 0 … 999.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mintnet.data.cifar10 import PIXELS, join, read_batch
from mintnet.data.dataset import DataError, ImageData
from mintnet.data.published import content, existing, find

Files = dict[str, tuple[str, ...]]

OLD: Files = {"train": ("train_32x32.npy",), "test": ("valid_32x32.npy",)}
BOX: Files = {"train": tuple(f"train_data_batch_{k}" for k in range(1, 11)), "test": ("val_data",)}
COUNTS = {"train": 1_281_149, "test": 49_999}


def locate(name: str, folder: Path) -> Path | None:
    """The file published as ``name`` in ``folder``, where a batch may end in .npz, or None."""
    return find("imagenet32", folder, (name,) if name.endswith(".npy") else (f"{name}.npz", name))


def files(folder: Path) -> Files:
    """The files of the version in ``folder``, the older one if there is none; both are refused."""
    paths = [[locate(n, folder) for part in v.values() for n in part] for v in (OLD, BOX)]
    old, box = (next(filter(None, found), None) for found in paths)
    if old and box:
        raise DataError(
            f"imagenet32: expected one of its two versions; {folder} has both "
            f"({old.name} and {box.name}); put each into a folder of its own and name that folder"
        )
    return BOX if box else OLD


def load(split: str, folder: str | Path | None) -> ImageData:
    """ImageNet 32×32, (N, 3, 32, 32), in the version that is there; "test" are its validation."""
    home = existing("imagenet32", folder)
    version = files(home)
    found = {name: locate(name, home) for name in version[split]}
    if missing := [name for name, path in found.items() if path is None]:
        raise DataError(
            f"imagenet32: expected {', '.join(found)} in {home} or {home / 'imagenet32'}; "
            f"{', '.join(missing)} not there; `mintnet data get imagenet32` says where it is from"
        )
    paths = [path for path in found.values() if path]
    if version is BOX:
        return join("imagenet32-box", (read_batch(p, content(p), 1, 1000) for p in paths))
    images = map_npy(paths[0])
    if len(images) == COUNTS["train" if split == "test" else "test"]:
        raise DataError(
            f"{paths[0]}: expected the {split} images; its {len(images)} images are as many "
            f"as the other file's; are the two swapped?"
        )
    return ImageData("imagenet32-old", torch.from_numpy(images))


def map_npy(path: Path) -> NDArray[np.uint8]:
    """Images (N, 32, 32, 3), (N, 3, 32, 32) or (N, 3072), memory-mapped, as (N, 3, 32, 32).

    The map is private: nothing that is written into the array reaches the file.
    """
    try:
        array: NDArray[np.uint8] = np.lib.format.open_memmap(path, mode="c")
    except Exception as error:  # a damaged header can raise nearly anything
        raise DataError.damaged(path, "a .npy file of images", error) from error
    if array.dtype == np.uint8 and array.size:
        if array.shape[1:] == (32, 32, 3):
            return array.transpose(0, 3, 1, 2)
        if array.shape[1:] in ((3, 32, 32), (PIXELS,)):
            return array.reshape(-1, 3, 32, 32)
    raise DataError(
        f"{path}: expected uint8 images of shape (N, 32, 32, 3), (N, 3, 32, 32) or (N, {PIXELS}); "
        f"got {array.dtype} of shape {array.shape}"
    )
