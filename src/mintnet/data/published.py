"""The published files: their md5 sums (of gzip files, of what is inside), places and bytes."""

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from mintnet.data.dataset import DataError
from mintnet.files import readable_size

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

DOWNLOADED = ("mnist", "cifar10")  # these can be had without registration
LARGEST = 600_000_000  # bytes, unpacked: half more than any published file that is not mapped


def md5(data: bytes | bytearray) -> str:
    """The md5 sum of some bytes, in hexadecimal."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def refuse_renamed(path: Path, name: str, data: bytearray, known: Mapping[str, str]) -> None:
    """Raise if the content of ``path``, published under ``name``, is that of another file.

    A training batch and the test batch can be told apart in no other way. Unknown content is let
    through: other sets are published in the same formats.
    """
    other = {digest: other for other, digest in known.items()}.get(md5(data), name)
    if other != name:
        raise DataError(f"{path}: expected {name}; its content is that of {other}; rename it back")


def existing(name: str, folder: str | Path | None) -> Path:
    """The folder that holds the data set ``name``, checked to be one."""
    wanted = f"{name}: expected the folder that holds its files (--data)"
    if folder is None:
        fetch = f"; `mintnet data get {name} DIR` fetches them" if name in DOWNLOADED else ""
        raise DataError(f"{wanted}; got none{fetch}")
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise DataError(f"{wanted}; {path} {'is a file' if path.exists() else 'does not exist'}")
    return path


def find(name: str, folder: Path, files: Iterable[str], *below: str) -> Path | None:
    """The first of ``files`` in the set's own subfolder, or else in ``folder``, or ``below``."""
    files = tuple(files)
    places = (base / sub for base in (folder / name, folder) for sub in ("", *below))
    return next((place / f for place in places for f in files if (place / f).is_file()), None)


def content(path: Path) -> bytearray:
    """The bytes of a file, unpacked if they are gzip, whatever the file is called."""
    data = bytearray()
    try:
        readable_size(path)  # refuses pipes and devices
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            while chunk := file.read(1 << 20):
                data += chunk
                if len(data) > LARGEST:
                    raise DataError(f"{path}: expected at most {LARGEST:,} bytes; it holds more")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError.damaged(path, "a whole gzip file", error) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not data:
        raise DataError(f"{path}: expected data; the file is empty; get it again")
    return data
