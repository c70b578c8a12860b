"""Getting the published files, and checking those that are there already.

Nothing that exists is overwritten: a damaged file is named, and whoever owns it removes it.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from mintnet.data import cifar10, idx, imagenet32
from mintnet.data.dataset import DataError
from mintnet.data.fetch import fetch, write
from mintnet.data.paths import content, find, places, reason
from mintnet.data.published import ARCHIVES, CIFAR10_BINARY, CIFAR10_PYTHON, MNIST, md5

Status = Literal["verified", "present", "missing", "damaged"]

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
CIFAR10_MIRRORS = ("https://www.cs.toronto.edu/~kriz",)
_ARCHIVES: dict[str, Mapping[str, str]] = {
    "cifar-10-binary.tar.gz": CIFAR10_BINARY,
    "cifar-10-python.tar.gz": CIFAR10_PYTHON,
}
_NAMES = ("digits", "mnist", "cifar10", "imagenet32")
DOWNLOADED = ("mnist", "cifar10")
"""The data sets that can be had without registration."""


class FileStatus(NamedTuple):
    """A file of a data set and its state.

    ``verified``: the published content; ``damaged``: other content; ``present``: there, and
    nothing published to compare it with.
    """

    file: Path
    status: Status


def verify(name: str, folder: str | Path) -> list[FileStatus]:
    """The files of a data set in ``folder``, each with its state; digits have none.

    Examples:
        >>> [(s.file.name, s.status) for s in verify("mnist", "/nowhere")][0]
        ('train-images-idx3-ubyte.gz', 'missing')
    """
    if name not in _NAMES:
        raise ValueError(f"unknown data set {name!r} to get; expected one of {', '.join(_NAMES)}")
    base = Path(folder).expanduser()
    if name == "mnist":
        look = places(name, base, *idx.SUBFOLDERS)
        found = {n: find(look, idx.spellings(n)) for n in MNIST}
        home = next((p.parent for p in found.values() if p), _home(name, base))
        return [_compare(p or home / f"{n}.gz", MNIST[n]) for n, p in found.items()]
    if name == "cifar10":
        home, version = cifar10.locate(base) or (_home(name, base), CIFAR10_BINARY)
        return [_compare(home / n, digest) for n, digest in version.items()]
    if name == "imagenet32":
        files = imagenet32.BOX if imagenet32.locate(base) == "box" else imagenet32.OLD
        look, home = places(name, base), _home(name, base)
        wanted = [n for part in files.values() for n in part]
        both = [(n, find(look, imagenet32.spellings(n))) for n in wanted]
        return [FileStatus(p or home / n, "present" if p else "missing") for n, p in both]
    return []


def get(name: str, folder: str | Path, *, progress: bool = False) -> list[Path]:
    """The files of a data set in ``folder``, downloaded into it where they are missing.

    New files go where others of the set are, else into a subfolder called ``name``. An archive
    that was put there by hand is unpacked, and downloads nothing.

    Raises:
        DataError: a damaged file, no network, or a set that cannot be downloaded; the line names
            the file, the address and where to put it by hand.

    Examples:
        >>> get("digits", "anywhere")  # they are part of the package
        []
    """
    states = verify(name, folder)
    for file, status in states:
        if status == "damaged":
            raise DataError(
                f"{file}: expected the published content; it is damaged or another file; "
                f"move it away, then `mintnet data get {name}` downloads it"
            )
    missing = [state.file for state in states if state.status == "missing"]
    if missing and name == "imagenet32":
        raise DataError(
            f"imagenet32: not to be had without registration; missing in {missing[0].parent}: "
            f"{', '.join(file.name for file in missing)}; register at "
            "https://image-net.org/download-images and put there either train_32x32.npy and "
            "valid_32x32.npy (the older version) or train_data_batch_1 to _10 and val_data, "
            "as pickles or .npz (the anti-aliased one)"
        )
    for file in missing if name == "mnist" else ():
        fetch(file, MNIST_MIRRORS, partial(_holds, digest=MNIST[file.name[:-3]]), progress)
    if missing and name == "cifar10":
        _get_cifar10(missing, Path(folder).expanduser(), progress)
    return [state.file for state in (verify(name, folder) if missing else states)]


def _home(name: str, folder: Path) -> Path:
    return folder if folder.name == name else folder / name


def _holds(file: Path, digest: str) -> bool:
    return md5(content(file)) == digest


def _compare(file: Path, digest: str) -> FileStatus:
    if not file.is_file():
        return FileStatus(file, "missing")
    try:
        return FileStatus(file, "verified" if _holds(file, digest) else "damaged")
    except DataError:
        return FileStatus(file, "damaged")


def _get_cifar10(missing: list[Path], folder: Path, progress: bool) -> None:
    """Unpack the missing files from an archive that is there, or else from a downloaded one."""
    home, versions = missing[0].parent, _ARCHIVES
    if len(missing) < 6 or missing[0].name in CIFAR10_PYTHON:  # no longer free to choose
        versions = {a: v for a, v in _ARCHIVES.items() if missing[0].name in v}
    archive = find(places("cifar10", folder), versions)
    if kept := archive is not None:
        if not _is_published(archive):
            raise DataError(
                f"{archive}: expected the published archive; its md5 differs; remove it"
            )
    else:
        archive = home / next(iter(versions))
        fetch(archive, CIFAR10_MIRRORS, _is_published, progress)
    version = versions[archive.name]
    names = [file.name for file in missing if file.name in version] or list(version)
    try:
        with tarfile.open(archive) as tar:
            members = {Path(m.name).name: m for m in tar if m.isfile()}
            for name in names:
                member = tar.extractfile(members[name])
                data = member.read() if member else b""
                if md5(data) != version[name]:
                    raise DataError(f"{archive}: {name} in it is not the published one")
                write(home / name, partial(_put, data=data))
    except (KeyError, tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: cannot be unpacked ({reason(error)})") from error
    if not kept:
        archive.unlink()


def _is_published(archive: Path) -> bool:
    return md5(archive.read_bytes()) == ARCHIVES[archive.name]


def _put(path: Path, data: bytes) -> None:
    path.write_bytes(data)
