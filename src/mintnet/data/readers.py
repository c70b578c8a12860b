"""Readers of MNIST, CIFAR-10 and ImageNet 32×32 in all published forms; no pickle runs code."""

import io
import math
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mintnet.data import published
from mintnet.data.dataset import DataError, ImageData
from mintnet.data.published import CIFAR10_BINARY, CIFAR10_PYTHON, LARGEST, content

PARTS = {"train": "train", "test": "t10k"}
MAGIC = {"images": 2051, "labels": 2049}
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS  # bytes of CIFAR-10's binary version: a label, then pixels, channel-major
COUNTS = {"train": 1_281_149, "test": 49_999}
Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (N, 3072), labels (N,) from 0
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


def parse_idx(data: bytes | bytearray, kind: str, source: str | Path = "idx") -> NDArray[np.uint8]:
    """The array, (N, H, W) or (N,), in an idx file of ``kind`` images or labels.

    It starts with two zero bytes, the type (8: unsigned byte), the number of dimensions, and each
    of them as a big-endian 32-bit integer; the entries follow.
    """
    magic = int.from_bytes(data[:4], "big")
    if len(data) < 4 or magic != MAGIC[kind]:
        came = f"a file that starts with {bytes(data[:8])!r}; get it again"
        if magic in MAGIC.values():  # those of the other kind
            other = "labels" if kind == "images" else "images"
            came = f"{other} (magic {magic}); are two files swapped?"
        raise DataError(f"{source}: expected idx {kind} (magic {MAGIC[kind]}); got {came}")
    start = 4 + 4 * (magic & 0xFF)
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    size = start + math.prod(shape)
    if len(data) != size or len(data) < start:
        wanted = f"{max(size, start)} bytes for {kind} of shape {shape}"
        raise DataError(f"{source}: expected {wanted}; got {len(data)}; get the file again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def load_mnist(split: str, folder: str | Path | None) -> ImageData:
    """MNIST, or another set in the same files, (N, 1, 28, 28) with labels 0 … 9."""
    home, part, arrays = published.existing("mnist", folder), PARTS[split], []
    files = _all_of("mnist", home, split)
    for kind, (name, path) in zip(MAGIC, files.items(), strict=True):
        data = content(path)
        arrays.append(parse_idx(data, kind, path))
        published.refuse_renamed(path, name, data, published.MNIST)
    (images, labels), paths = arrays, list(files.values())
    if (size := images.shape[1:]) != (28, 28):
        raise DataError(f"{paths[0]}: expected images of 28x28 pixels; got {size[0]}x{size[1]}")
    if (top := labels.max(initial=0)) > 9:
        raise DataError(f"{paths[1]}: expected labels 0 to 9; got {top}")
    if len(images) != len(labels) or len(images) == 0:
        got = f"{home} has {len(images)} images and {len(labels)} labels in its {part} files"
        raise DataError(f"mnist: expected as many labels as images, and at least one; {got}")
    classes = torch.from_numpy(labels.astype(np.int64))
    return ImageData("mnist", torch.from_numpy(images[:, None]), classes)


def _all_of(name: str, home: Path, split: str) -> dict[str, Path]:
    """The files of a split of a data set, or an error that names those not there."""
    files = published.located(name, home).items()
    found = {n: p for n, p in files if n.startswith(("train", "data")) == (split == "train")}
    if missing := [file for file, path in found.items() if path is None]:
        wanted = f"{', '.join(found)} in {home} or {home / name}; {', '.join(missing)} not there"
        mend = f"`mintnet data get {name} {home}` downloads it or says where it is from"
        raise DataError(f"{name}: expected {wanted}; {mend}")
    return {file: path for file, path in found.items() if path}


def load_cifar10(split: str, folder: str | Path | None) -> ImageData:
    """CIFAR-10, (N, 3, 32, 32) with labels 0 … 9; the binary version goes before the other."""
    files = _all_of("cifar10", published.existing("cifar10", folder), split)
    version = CIFAR10_PYTHON if files.keys() <= CIFAR10_PYTHON.keys() else CIFAR10_BINARY
    return join("cifar10", [_read(path, version) for path in files.values()])


def _read(path: Path, version: Mapping[str, str]) -> Batch:
    data = content(path)
    published.refuse_renamed(path, path.name, data, version)
    if version is CIFAR10_PYTHON:
        return read_batch(path, data, 0, 9)
    count, rest = divmod(len(data), RECORD)
    if rest or not count:
        got = f"{len(data)} bytes, {rest} too many for {count} records"
        raise DataError(f"{path}: expected records of {RECORD} bytes; got {got}; get it again")
    records = np.frombuffer(data, np.uint8).reshape(count, RECORD)
    if (top := records[:, 0].max()) > 9:
        raise DataError(f"{path}: expected labels 0 to 9; got {top}; is it a CIFAR-10 batch?")
    return records[:, 1:], records[:, 0].astype(np.int64)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(f"expected arrays, lists and numbers only; {module}.{name} is refused")
        return _ALLOWED[module, name]


def read_table(path: Path, data: bytes | bytearray) -> dict[str, Any]:
    """The dictionary in the content of a file, .npz or else a pickle of Python 2 or 3."""
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
        got = f"no {' and no '.join(missing)}, only {', '.join(sorted(table)) or 'nothing'}"
        raise DataError(f"{path}: expected data and labels; it has {got}")
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
    return images, labels.astype(np.int64) - low


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


def load_imagenet32(split: str, folder: str | Path | None) -> ImageData:
    """ImageNet 32×32, (N, 3, 32, 32), in the version that is there; "test" are its validation."""
    files = _all_of("imagenet32", published.existing("imagenet32", folder), split)
    first, *_ = files.values()
    if files.keys() <= set(published.BOX):
        batches = (read_batch(path, content(path), 1, 1000) for path in files.values())
        return join("imagenet32-box", batches)
    images = map_npy(first)
    if len(images) == COUNTS["train" if split == "test" else "test"]:
        got = f"{len(images)} images, as many as in the other file; are the two swapped?"
        raise DataError(f"{first}: expected the {split} images; got {got}")
    return ImageData("imagenet32-old", torch.from_numpy(images))


def map_npy(path: Path) -> NDArray[np.uint8]:
    """Images (N, 32, 32, 3), (N, 3, 32, 32) or (N, 3072), memory-mapped, as (N, 3, 32, 32)."""
    try:
        array: NDArray[np.uint8] = np.lib.format.open_memmap(path, mode="c")  # copied on write
    except Exception as error:  # a damaged header can raise nearly anything
        raise DataError.damaged(path, "a .npy file of images", error) from error
    if array.dtype == np.uint8 and array.size:
        if array.shape[1:] == (32, 32, 3):
            return array.transpose(0, 3, 1, 2)
        if array.shape[1:] in ((3, 32, 32), (PIXELS,)):
            return array.reshape(-1, 3, 32, 32)
    wanted = f"images (N, 32, 32, 3), (N, 3, 32, 32) or (N, {PIXELS})"
    raise DataError(f"{path}: expected uint8 {wanted}; got {array.dtype} of shape {array.shape}")
