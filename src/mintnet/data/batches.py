"""Batches of 32×32 colour images in a dictionary, "data" and "labels", pickled or as .npz.

Pickles are read without running what they name: arrays and plain containers only.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mintnet.data.dataset import DataError, ImageData
from mintnet.data.published import LARGEST

PIXELS = 3 * 32 * 32

# Taken from arrays themselves, since their home in numpy moved from `core` to `_core`.
_FUNCTIONS: Final[dict[tuple[str, str], Any]] = {
    ("multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("multiarray", "scalar"): np.int64(0).__reduce__()[0],
    ("numeric", "_frombuffer"): np.empty(0).__reduce_ex__(5)[0],
}
_ALLOWED: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    # how Python 3 writes bytes into old protocols; str.encode knows text encodings only
    ("_codecs", "encode"): str.encode,
    **{(f"numpy.core.{module}", name): f for (module, name), f in _FUNCTIONS.items()},
    **{(f"numpy._core.{module}", name): f for (module, name), f in _FUNCTIONS.items()},
}


class Batch(NamedTuple):
    """Images (N, 3072) uint8, channel-major, and labels (N,) int64, counted from 0."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(
                f"expected arrays, lists and numbers only; the pickle asks for {module}.{name}, "
                "which is refused; get the file from its publisher"
            )
        return _ALLOWED[module, name]


def read_table(path: Path, data: bytes | bytearray) -> dict[str, Any]:
    """The dictionary in the content of a file, .npz or else a pickle of Python 2 or 3.

    Examples:
        >>> read_table(Path("batch"), pickle.dumps({b"labels": [3, 1]}))
        {'labels': [3, 1]}
        >>> read_table(Path("batch"), pickle.dumps(print))
        Traceback (most recent call last):
        mintnet.data.dataset.DataError: batch: ... asks for builtins.print, which is refused; ...
    """
    npz = path.suffix == ".npz"
    try:
        if npz:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if (size := sum(info.file_size for info in archive.infolist())) > LARGEST:
                    raise DataError(f"expected at most {LARGEST:,} bytes unpacked; got {size:,}")
            with np.load(io.BytesIO(data), allow_pickle=False) as table:
                return {key: table[key] for key in ("data", "labels") if key in table}
        value = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged file can raise nearly anything
        expected = "an .npz file with data and labels" if npz else "a pickled batch"
        raise DataError.damaged(path, expected, error) from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a pickled dictionary; got {type(value).__name__}")
    return {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in value.items()}


def read_batch(path: Path, data: bytes | bytearray, low: int, high: int) -> Batch:
    """The batch in the content of a file, with labels ``low`` … ``high``."""
    table = read_table(path, data)
    if missing := [key for key in ("data", "labels") if key not in table]:
        raise DataError(
            f"{path}: expected data and labels; it has no {' and no '.join(missing)}, "
            f"only {', '.join(sorted(table)) or 'nothing'}"
        )
    images, array = table["data"], isinstance(table["data"], np.ndarray)
    came = f"{images.dtype} of shape {images.shape}" if array else type(images).__name__
    if not array or came != f"uint8 of shape {(images.size // PIXELS, PIXELS)}" or not images.size:
        raise DataError(f"{path}: expected uint8 data of shape (N, {PIXELS}); got {came}")
    labels = table["labels"]
    if isinstance(labels, list):
        whole = len(labels) == len(images) and all(isinstance(each, Integral) for each in labels)
        labels = np.asarray(labels) if whole else None
    if (
        not isinstance(labels, np.ndarray)
        or labels.dtype.kind not in "iu"
        or labels.shape != (len(images),)
    ):
        raise DataError(f"{path}: expected {len(images)} integer labels, one an image; got others")
    if labels.min() < low or labels.max() > high:
        raise DataError(
            f"{path}: expected labels {low} to {high}; got {labels.min()} to {labels.max()}"
        )
    return Batch(images, labels.astype(np.int64) - low)


def join(name: str, batches: Iterable[Batch]) -> ImageData:
    """All batches as one set; memory for images stays near one copy of it all."""
    parts, labels = map(list, zip(*batches, strict=True))
    whole = np.empty((sum(map(len, parts)), PIXELS), np.uint8)
    start = 0
    while parts:
        part = parts.pop(0)  # freed as soon as it is copied
        whole[start : start + len(part)] = part
        start += len(part)
    images = torch.from_numpy(whole.reshape(-1, 3, 32, 32))
    return ImageData(name, images, torch.from_numpy(np.concatenate(labels)))
