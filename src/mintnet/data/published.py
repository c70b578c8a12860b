"""The md5 sums of the published files, those of gzip files taken of what is inside."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mintnet.data.dataset import DataError

MNIST: Final = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}

CIFAR10_BINARY: Final = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}

CIFAR10_PYTHON: Final = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}

ARCHIVES: Final = {
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
}


def md5(data: bytes | bytearray | memoryview) -> str:
    """The md5 sum of some bytes, in hexadecimal."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def refuse_renamed(
    path: Path, name: str, data: bytes | bytearray | memoryview, known: Mapping[str, str]
) -> None:
    """Raise if the content of ``path``, published under ``name``, is that of another file.

    Files of the same shape (a training batch and the test batch) can be told apart in no other
    way. Content that is not known is let through: other sets are published in the same formats.
    """
    digest = md5(data)
    for other, other_digest in known.items():
        if digest == other_digest and digest != known[name]:
            raise DataError(
                f"{path}: expected {name}; its content is that of {other}; rename it back"
            )
