"""Getting the published files, and checking those that are there already.

Nothing that exists is overwritten: a damaged file is named, and whoever owns it removes it. A
download takes its name only when it is whole and has the published content.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from mintnet.data import cifar10, idx, imagenet32
from mintnet.data.dataset import DataError
from mintnet.data.paths import content, find, missing_extra, places, reason
from mintnet.data.published import ARCHIVES, CIFAR10_BINARY, CIFAR10_PYTHON, MNIST, md5
from mintnet.files import whole_file

Status = Literal["verified", "present", "missing", "damaged"]

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
CIFAR10_MIRRORS = ("https://www.cs.toronto.edu/~kriz",)
_VERSIONS = {
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
    home = base if base.name == name else base / name
    if name == "mnist":
        found = {n: idx.locate(n, base) for n in MNIST}
        home = next((p.parent for p in found.values() if p), home)
        return [_compare(p or home / f"{n}.gz", MNIST[n]) for n, p in found.items()]
    if name == "cifar10":
        home, version = cifar10.locate(base) or (home, CIFAR10_BINARY)
        return [_compare(home / n, digest) for n, digest in version.items()]
    if name == "imagenet32":
        wanted = [n for part in imagenet32.files(base).values() for n in part]
        both = [(n, imagenet32.locate(n, base)) for n in wanted]
        return [FileStatus(p or home / n, "present" if p else "missing") for n, p in both]
    return []


def get(name: str, folder: str | Path, *, progress: bool = False) -> list[Path]:
    """The files of a data set in ``folder``, downloaded into it where they are missing.

    New files go where others of the set are, else into a subfolder called ``name``. An archive
    that was put there by hand is unpacked, and nothing is downloaded.

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
        published = partial(_holds, digest=MNIST[file.name.removesuffix(".gz")])
        fetch(file, MNIST_MIRRORS, published, progress)
    if missing and name == "cifar10":
        _get_cifar10(missing, Path(folder).expanduser(), progress)
    return [state.file for state in (verify(name, folder) if missing else states)]


def fetch(
    file: Path, mirrors: Sequence[str], published: Callable[[Path], bool], progress: bool = False
) -> None:
    """Download ``file`` from the first of ``mirrors`` that has it so that ``published`` holds."""
    faults = []
    for url in (f"{mirror}/{file.name}" for mirror in mirrors):
        try:
            with _writing(file) as part:
                _download(url, part, progress)
                if not published(part):
                    raise _MirrorError("not the published content")
        except _MirrorError as error:
            faults.append(f"{url} ({error})")
        else:
            return
    raise DataError(
        f"{file.name}: could not be downloaded from {' or '.join(faults)}; "
        f"get it by hand and put it at {file}, then run this again"
    )


class _MirrorError(Exception):
    """A mirror does not answer, or not with the published file."""


def _download(url: str, path: Path, progress: bool) -> None:
    try:
        import pooch
        import requests
    except ImportError as error:
        raise missing_extra("pooch", "downloading") from error
    download = pooch.HTTPDownloader(progressbar=progress and find_spec("tqdm") is not None)
    try:
        download(url, str(path), None)
    except requests.RequestException as error:
        code = None if error.response is None else error.response.status_code
        raise _MirrorError(f"HTTP {code}" if code else type(error).__name__) from error


@contextmanager
def _writing(file: Path) -> Iterator[Path]:
    """Where to write what is to become ``file``; it takes its place when it is whole."""
    try:
        with whole_file(file) as part:
            yield part
    except OSError as error:
        words = error.strerror or f"cannot be written ({reason(error)})"
        raise DataError(f"{file}: {words}") from error


def _holds(file: Path, digest: str) -> bool:
    try:
        return md5(content(file)) == digest
    except DataError:
        return False


def _compare(file: Path, digest: str) -> FileStatus:
    if not file.is_file():
        return FileStatus(file, "missing")
    return FileStatus(file, "verified" if _holds(file, digest) else "damaged")


def _get_cifar10(missing: list[Path], folder: Path, progress: bool) -> None:
    """Unpack the missing files from an archive that is there, or else from a downloaded one."""
    home, versions = missing[0].parent, _VERSIONS
    if len(missing) < 6 or missing[0].name in CIFAR10_PYTHON:  # no longer free to choose
        versions = {a: v for a, v in _VERSIONS.items() if missing[0].name in v}
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
                with _writing(home / name) as part:
                    part.write_bytes(data)
    except (KeyError, tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: cannot be unpacked ({reason(error)})") from error
    if not kept:
        archive.unlink()


def _is_published(archive: Path) -> bool:
    return md5(archive.read_bytes()) == ARCHIVES[archive.name]
