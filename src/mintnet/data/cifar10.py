"""CIFAR-10, binary or pickled, and all batches of 32×32 colour images with "data" and "labels".

A record of the binary version is 1 byte of label and 3072 bytes of pixels, channel-major. Pickles
are read without running what they name: arrays and plain containers only.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mintnet.data import published
from mintnet.data.dataset import DataError, ImageData
from mintnet.data.published import CIFAR10_BINARY, CIFAR10_PYTHON, LARGEST, content

PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    # how Python 3 writes bytes into old protocols; str.encode knows text encodings only
    ("_codecs", "encode"): str.encode,
}
for _home in ("numpy.core", "numpy._core"):  # numpy moved them, so they are taken from arrays
    _ALLOWED[f"{_home}.multiarray", "_reconstruct"] = np.empty(0).__reduce__()[0]
    _ALLOWED[f"{_home}.multiarray", "scalar"] = np.int64(0).__reduce__()[0]
    _ALLOWED[f"{_home}.numeric", "_frombuffer"] = np.empty(0).__reduce_ex__(5)[0]


class Batch(NamedTuple):
    """Images (N, 3072) uint8, channel-major, and labels (N,) int64, counted from 0."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def locate(folder: Path) -> tuple[Path, Mapping[str, str]] | None:
    """The folder with CIFAR-10 files in or below ``folder``, and the names and md5s to expect."""
    below = "cifar-10-batches-bin", "cifar-10-batches-py"
    for version in (CIFAR10_BINARY, CIFAR10_PYTHON):
        if path := published.find("cifar10", folder, version, *below):
            return path.parent, version
    return None


def load(split: str, folder: str | Path | None) -> ImageData:
    """CIFAR-10, (N, 3, 32, 32) with labels 0 … 9; the binary version goes before the other."""
    home = published.existing("cifar10", folder)
    place, version = locate(home) or (home / "cifar10", CIFAR10_BINARY)
    wanted = [name for name in version if name.startswith("test") == (split == "test")]
    if missing := [name for name in wanted if not (place / name).is_file()]:
        raise DataError(
            f"cifar10: expected {', '.join(wanted)} in {place}; {', '.join(missing)} not there; "
            f"`mintnet data get cifar10 {home}` downloads what is missing"
        )
    return join("cifar10", [_read(place / name, version) for name in wanted])


def _read(path: Path, version: Mapping[str, str]) -> Batch:
    data = content(path)
    published.refuse_renamed(path, path.name, data, version)
    if version is CIFAR10_PYTHON:
        return read_batch(path, data, 0, 9)
    count, rest = divmod(len(data), RECORD)
    if rest or not count:
        raise DataError(
            f"{path}: expected records of {RECORD} bytes; got {len(data)} bytes, "
            f"{rest} too many for {count} records; get the file again"
        )
    records = np.frombuffer(data, np.uint8).reshape(count, RECORD)
    if (top := records[:, 0].max()) > 9:
        raise DataError(f"{path}: expected labels 0 to 9; got {top}; is it a CIFAR-10 batch?")
    return Batch(records[:, 1:], records[:, 0].astype(np.int64))


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
    images, labels, came = table["data"], table["labels"], type(table["data"]).__name__
    if array := isinstance(images, np.ndarray):
        came = f"{images.dtype} of shape {images.shape}"
    if not array or came != f"uint8 of shape {(images.size // PIXELS, PIXELS)}" or not images.size:
        raise DataError(f"{path}: expected uint8 data of shape (N, {PIXELS}); got {came}")
    if isinstance(labels, list) and all(isinstance(each, Integral) for each in labels):
        labels = np.asarray(labels)
    whole = isinstance(labels, np.ndarray) and labels.dtype.kind in "iu"
    if not whole or labels.shape != (len(images),):
        raise DataError(f"{path}: expected {len(images)} integer labels, one an image; got others")
    least, most = labels.min(), labels.max()
    if least < low or most > high:
        raise DataError(f"{path}: expected labels {low} to {high}; got {least} to {most}")
    return Batch(images, labels.astype(np.int64) - low)


def join(name: str, batches: Iterable[Batch]) -> ImageData:
    """All batches as one set; memory for images stays near one copy of it all."""
    parts, labels = map(list, zip(*batches, strict=True))
    whole, start = np.empty((sum(map(len, parts)), PIXELS), np.uint8), 0
    while parts:
        part = parts.pop(0)  # freed as soon as it is copied
        whole[start : start + len(part)] = part
        start += len(part)
    images = torch.from_numpy(whole.reshape(-1, 3, 32, 32))
    return ImageData(name, images, torch.from_numpy(np.concatenate(labels)))
