"""The published files: their md5 sums (of gzip files, of what is inside), places and bytes."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from mintnet.data.dataset import FILES, DataError
from mintnet.files import readable_size

_md5s: dict[str, dict[str, str]] = json.loads((FILES / "published.json").read_text())
MNIST, CIFAR10_BINARY, CIFAR10_PYTHON, ARCHIVES = _md5s.values()
OLD = ("train_32x32.npy", "valid_32x32.npy")  # ImageNet 32×32 of the papers on density models
BOX = (*(f"train_data_batch_{k}" for k in range(1, 11)), "val_data")
"""The anti-aliased version, about 0.25 bits per dimension easier: pickles or .npz with labels."""
VERSIONS: dict[str, tuple[Iterable[str], ...]] = {"mnist": (MNIST,)}
VERSIONS |= {"cifar10": (CIFAR10_BINARY, CIFAR10_PYTHON), "imagenet32": (OLD, BOX)}
BELOW = {"mnist": ("MNIST/raw", "raw"), "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py")}
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


def located(name: str, folder: Path) -> dict[str, Path | None]:
    """The files of a data set and where they are in or below ``folder``, packed or not, or None."""
    every = [
        {file: find(name, folder, _spellings(name, file), *BELOW.get(name, ())) for file in files}
        for files in VERSIONS[name]
    ]
    there = [found for found in every if any(found.values())]
    if name == "imagenet32" and len(there) > 1:
        old, box = (next(filter(None, found.values())).name for found in there)
        both = f"{folder} has both ({old} and {box}); put each into a folder of its own"
        raise DataError(f"imagenet32: expected one of its two versions; {both}")
    return (there or every)[0]  # of several versions the first that is there, or else the first


def _spellings(name: str, file: str) -> tuple[str, ...]:
    if name == "mnist":
        dotted = file.replace("-idx", ".idx")
        return file, f"{file}.gz", dotted, f"{dotted}.gz"
    return (f"{file}.npz", file) if name == "imagenet32" else (file,)


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
