"""CIFAR-10: the binary version, and the batches pickled by Python.

A record of the binary version is 1 byte of label and 3072 bytes of pixels, channel-major.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mintnet.data.batches import PIXELS, Batch, join, read_batch
from mintnet.data.dataset import DataError, ImageData
from mintnet.data.published import (
    CIFAR10_BINARY,
    CIFAR10_PYTHON,
    content,
    existing,
    find,
    refuse_renamed,
)

RECORD = 1 + PIXELS


def locate(folder: Path) -> tuple[Path, Mapping[str, str]] | None:
    """The folder with CIFAR-10 files in or below ``folder``, and the names and md5s to expect."""
    for version in (CIFAR10_BINARY, CIFAR10_PYTHON):
        path = find("cifar10", folder, version, "cifar-10-batches-bin", "cifar-10-batches-py")
        if path is not None:
            return path.parent, version
    return None


def load(split: str, folder: str | Path | None) -> ImageData:
    """CIFAR-10, (N, 3, 32, 32) with labels 0 … 9; the binary version goes before the other."""
    home = existing("cifar10", folder)
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
    refuse_renamed(path, path.name, data, version)
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
