"""Batches of 32×32 colour images in a dictionary, "data" and "labels", pickled or as .npz."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mintnet.data.dataset import DataError, ImageData
from mintnet.data.paths import reason
from mintnet.data.unpickle import unpickle

PIXELS = 3 * 32 * 32


class Batch(NamedTuple):
    """Images (N, 3072) uint8, channel-major, and labels (N,) int64, counted from 0."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def read_batch(path: Path, low: int, high: int, raw: bytes | bytearray | None = None) -> Batch:
    """The batch in a file, .npz or else a pickle, with labels ``low`` … ``high``.

    ``raw`` is the content of the file, where it has been read already.
    """
    if path.suffix == ".npz":
        return _checked(_read_npz(path), path, low, high)
    try:
        with io.BytesIO(raw) if raw is not None else path.open("rb") as file:
            return _checked(unpickle(file, path), path, low, high)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or reason(error)})") from error


def join(name: str, batches: Iterable[Batch]) -> ImageData:
    """All batches as one set; memory for images stays near one copy of it all."""
    parts, labels = [], []
    for batch in batches:
        parts.append(batch.images)
        labels.append(batch.labels)
    del batch
    whole = np.empty((sum(map(len, parts)), PIXELS), np.uint8)
    start = 0
    while parts:
        part = parts.pop(0)  # freed as soon as it is copied
        whole[start : start + len(part)] = part
        start += len(part)
    images = torch.from_numpy(whole.reshape(-1, 3, 32, 32))
    return ImageData(name, images, torch.from_numpy(np.concatenate(labels)))


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        # a damaged zip would leave a file open that numpy opened itself
        with path.open("rb") as file, np.load(file, allow_pickle=False) as table:
            return {key: table[key] for key in ("data", "labels") if key in table}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: expected an .npz file with data and labels; it is truncated, damaged or "
            f"something else ({reason(error)}); get it again"
        ) from error


def _checked(table: Mapping[str, Any], path: Path, low: int, high: int) -> Batch:
    if missing := [key for key in ("data", "labels") if key not in table]:
        raise DataError(
            f"{path}: expected data and labels; it has no {' and no '.join(missing)}, "
            f"only {', '.join(sorted(table)) or 'nothing'}"
        )
    images = table["data"]
    came = type(images).__name__
    if isinstance(images, np.ndarray):
        came = f"{images.dtype} of shape {images.shape}"
    if came != f"uint8 of shape {(len(images), PIXELS)}" or not len(images):
        raise DataError(f"{path}: expected uint8 data of shape (N, {PIXELS}); got {came}")
    try:
        labels = np.asarray(table["labels"])
    except (ValueError, TypeError):
        labels = np.empty(0)
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise DataError(f"{path}: expected {len(images)} integer labels, one an image; got others")
    if labels.min() < low or labels.max() > high:
        raise DataError(
            f"{path}: expected labels {low} to {high}; got {labels.min()} to {labels.max()}"
        )
    return Batch(images, labels.astype(np.int64) - low)
