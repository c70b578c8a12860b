"""Batches of 32×32 colour images in a dictionary, "data" and "labels", pickled or as .npz."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mintnet.data.dataset import DataError
from mintnet.data.paths import reason
from mintnet.data.unpickle import unpickle

PIXELS = 3 * 32 * 32


class Batch(NamedTuple):
    """Images (N, 3072) uint8, channel-major, and labels (N,) int64."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def read_batch(path: Path, low: int, high: int, raw: bytes | bytearray | None = None) -> Batch:
    """The batch in a file, .npz or else a pickle, with labels ``low`` … ``high``.

    ``raw`` is the content of the file, where it has been read already.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "val_data.npz")
        ...     np.savez(path, data=np.zeros((2, PIXELS), np.uint8), labels=[1, 1000])
        ...     read_batch(path, 1, 1000).labels.tolist()
        [1, 1000]
    """
    if path.suffix == ".npz":
        return _checked(_read_npz(path), path, low, high)
    try:
        with io.BytesIO(raw) if raw is not None else path.open("rb") as file:
            return _checked(unpickle(file, path), path, low, high)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or reason(error)})") from error


def join(parts: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """The concatenation of ``parts``, which is emptied on the way.

    Each part is freed as soon as it is copied, so that the peak stays near one copy of it all.

    Examples:
        >>> join([np.zeros((2, 3), np.uint8), np.ones((1, 3), np.uint8)])[:, 0].tolist()
        [0, 0, 1]
    """
    if len(parts) == 1:
        return np.require(parts.pop(), requirements=["C", "W"])
    whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    start = 0
    while parts:
        part = parts.pop(0)
        whole[start : start + len(part)] = part
        start += len(part)
    return whole


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
    if (
        not isinstance(images, np.ndarray)
        or images.dtype != np.uint8
        or images.ndim != 2
        or images.shape[1] != PIXELS
        or len(images) == 0
    ):
        came = (
            f"{images.dtype} of shape {images.shape}"
            if isinstance(images, np.ndarray)
            else type(images).__name__
        )
        raise DataError(f"{path}: expected uint8 data of shape (N, {PIXELS}); got {came}")
    labels = _integers(table["labels"])
    if labels is None or labels.shape != (len(images),):
        raise DataError(f"{path}: expected {len(images)} integer labels, one an image; got others")
    if labels.min() < low or labels.max() > high:
        raise DataError(
            f"{path}: expected labels {low} to {high}; got {labels.min()} to {labels.max()}"
        )
    return Batch(images, labels.astype(np.int64, copy=False))


def _integers(values: Any) -> NDArray[Any] | None:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        return None
    return array if array.dtype.kind in "iu" else None
