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


def spellings(name: str) -> tuple[str, ...]:
    """The names under which a file is met: a batch may end in .npz.

    Examples:
        >>> spellings("val_data"), spellings("train_32x32.npy")
        (('val_data.npz', 'val_data'), ('train_32x32.npy',))
    """
    return (name,) if name.endswith(".npy") else (f"{name}.npz", name)


def locate(folder: Path) -> str | None:
    """The version in ``folder``, "old" or "box", or None; both at once are refused.

    Examples:
        >>> locate(Path("/nowhere")) is None
        True
    """
    found = {}
    for version, files in {"old": OLD, "box": BOX}.items():
        names = [spelling for part in files.values() for n in part for spelling in spellings(n)]
        path = find(places("imagenet32", folder), names)
        if path is not None:
            found[version] = path
    if len(found) == 2:
        raise DataError(
            f"imagenet32: expected one of its two versions; {folder} has both "
            f"({found['old'].name} and {found['box'].name}); put each into a folder of its own "
            f"and name that folder"
        )
    return next(iter(found), None)


def load(split: str, folder: str | Path | None) -> ImageData:
    """ImageNet 32×32 in the version that is there; the published validation images are "test".

    Shapes: images (N, 3, 32, 32); labels 0 … 999 in the anti-aliased version, else none.

    Examples:
        >>> load("train", "/nowhere")
        Traceback (most recent call last):
        mintnet.data.dataset.DataError: imagenet32: expected a folder with its files; ... not exist
    """
    home = existing("imagenet32", folder)
    version = locate(home)
    wanted = (BOX if version == "box" else OLD)[split]
    paths = [find(places("imagenet32", home), spellings(name)) for name in wanted]
    if missing := [name for name, path in zip(wanted, paths, strict=True) if path is None]:
        raise DataError(
            f"imagenet32: expected {', '.join(wanted)} in {home} or {home / 'imagenet32'}; "
            f"{', '.join(missing)} not there; `mintnet data get imagenet32` says where it is from"
        )
    found = [path for path in paths if path is not None]
    if version == "old":
        images = map_npy(found[0])
        if len(images) == COUNTS["train" if split == "test" else "test"]:
            raise DataError(
                f"{found[0]}: expected the {split} images; its {len(images)} images are as many "
                f"as the other file's; are the two swapped?"
            )
        return ImageData("imagenet32-old", torch.from_numpy(images))
    parts, labels = [], []
    for path in found:
        batch = read_batch(path, 1, 1000)
        parts.append(batch.images)
        labels.append(batch.labels - 1)
        del batch
    return ImageData(
        name="imagenet32-box",
        images=torch.from_numpy(join(parts).reshape(-1, 3, 32, 32)),
        labels=torch.from_numpy(np.concatenate(labels)),
    )


def map_npy(path: Path) -> NDArray[np.uint8]:
    """The images of a .npy file, memory-mapped, as a view with channels first.

    The file may hold (N, 32, 32, 3), (N, 3, 32, 32) or (N, 3072), the last channel-major.
    The map is private: nothing that is written into the array reaches the file.

    Shapes: (N, 3, 32, 32).

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(path := Path(folder, "valid_32x32.npy"), np.zeros((2, 32, 32, 3), np.uint8))
        ...     map_npy(path).shape
        (2, 3, 32, 32)
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
