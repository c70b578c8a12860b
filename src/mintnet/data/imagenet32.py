"""ImageNet 32×32, in its two published versions, which differ by about 0.25 bits per dimension.

- ``imagenet32-old``: the older one, in the papers on density models; ``train_32x32.npy`` and
  ``valid_32x32.npy`` (1,281,149 and 49,999 images), memory-mapped. No labels.
- ``imagenet32-box``: the anti-aliased one, which is easier; ``train_data_batch_1`` … ``_10`` and
  ``val_data``, each a pickle or .npz.

The version is part of the data's name, so that figures of one are not taken for the other's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mintnet.data.batches import PIXELS, join, read_batch
from mintnet.data.dataset import DataError, ImageData
from mintnet.data.paths import existing, find, places, reason

Files = dict[str, tuple[str, ...]]

OLD: Files = {"train": ("train_32x32.npy",), "test": ("valid_32x32.npy",)}
BOX: Files = {"train": tuple(f"train_data_batch_{k}" for k in range(1, 11)), "test": ("val_data",)}
COUNTS = {"train": 1_281_149, "test": 49_999}


def locate(name: str, folder: Path) -> Path | None:
    """The file published as ``name`` in ``folder``, where a batch may end in .npz, or None."""
    names = (name,) if name.endswith(".npy") else (f"{name}.npz", name)
    return find(places("imagenet32", folder), names)


def files(folder: Path) -> Files:
    """The files of the version in ``folder``, the older one if there is none; both are refused."""
    old, box = (
        next((path for part in version.values() for n in part if (path := locate(n, folder))), None)
        for version in (OLD, BOX)
    )
    if old and box:
        raise DataError(
            f"imagenet32: expected one of its two versions; {folder} has both "
            f"({old.name} and {box.name}); put each into a folder of its own and name that folder"
        )
    return BOX if box else OLD


def load(split: str, folder: str | Path | None) -> ImageData:
    """ImageNet 32×32 in the version that is there; the published validation images are "test".

    Shapes: images (N, 3, 32, 32); labels 0 … 999 in the anti-aliased version, else none.
    """
    home = existing("imagenet32", folder)
    version = files(home)
    wanted = version[split]
    paths = [locate(name, home) for name in wanted]
    if missing := [name for name, path in zip(wanted, paths, strict=True) if path is None]:
        raise DataError(
            f"imagenet32: expected {', '.join(wanted)} in {home} or {home / 'imagenet32'}; "
            f"{', '.join(missing)} not there; `mintnet data get imagenet32` says where it is from"
        )
    found = [path for path in paths if path is not None]
    if version is OLD:
        images = map_npy(found[0])
        if len(images) == COUNTS["train" if split == "test" else "test"]:
            raise DataError(
                f"{found[0]}: expected the {split} images; its {len(images)} images are as many "
                f"as the other file's; are the two swapped?"
            )
        return ImageData("imagenet32-old", torch.from_numpy(images))
    return join("imagenet32-box", (read_batch(path, 1, 1000) for path in found))


def map_npy(path: Path) -> NDArray[np.uint8]:
    """The images of a .npy file, memory-mapped, as a view with channels first.

    The file may hold (N, 32, 32, 3), (N, 3, 32, 32) or (N, 3072), the last channel-major.
    The map is private: nothing that is written into the array reaches the file.

    Shapes: (N, 3, 32, 32).
    """
    try:
        array: NDArray[np.uint8] = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path}: expected a .npy file of images; it is truncated, damaged or something else "
            f"({reason(error)}); get it again"
        ) from error
    if array.dtype == np.uint8 and array.size:
        if array.shape[1:] == (32, 32, 3):
            return array.transpose(0, 3, 1, 2)
        if array.shape[1:] in ((3, 32, 32), (PIXELS,)):
            return array.reshape(-1, 3, 32, 32)
    raise DataError(
        f"{path}: expected uint8 images of shape (N, 32, 32, 3), (N, 3, 32, 32) or (N, {PIXELS}); "
        f"got {array.dtype} of shape {array.shape}"
    )
