"""Getting the published files, and checking those that are there already.

Nothing that exists is overwritten; a download takes its name only with the published content.
"""

import tarfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from mintnet.data import published
from mintnet.data.dataset import DataError, reason
from mintnet.data.published import ARCHIVES, CIFAR10_BINARY, CIFAR10_PYTHON, MNIST, content, md5
from mintnet.files import whole_file, write_bytes

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
CIFAR10_MIRRORS = ("https://www.cs.toronto.edu/~kriz",)
_VERSIONS = dict(zip(ARCHIVES, (CIFAR10_BINARY, CIFAR10_PYTHON), strict=True))
_NAMES = ("digits", "mnist", "cifar10", "imagenet32")


class FileStatus(NamedTuple):
    """A file and its state: "present" where there is nothing published to compare it with."""

    file: Path
    status: Literal["verified", "present", "missing", "damaged"]


def verify(name: str, folder: str | Path) -> list[FileStatus]:
    """The files of a data set in ``folder``, each with its state; digits have none."""
    if name not in _NAMES:
        raise ValueError(f"unknown data set {name!r} to get; expected one of {', '.join(_NAMES)}")
    base = Path(folder).expanduser()
    found = published.located(name, base) if name in published.VERSIONS else {}
    home = next((p.parent for p in found.values() if p), base if base.name == name else base / name)
    digests, ending = MNIST | CIFAR10_BINARY | CIFAR10_PYTHON, ".gz" if name == "mnist" else ""
    return [_compare(p or home / f"{n}{ending}", digests.get(n)) for n, p in found.items()]


def get(name: str, folder: str | Path, *, progress: bool = False) -> list[Path]:
    """The files of a data set in ``folder``, downloaded into it where they are missing.

    New files go where others of the set are, else into a subfolder called ``name``. An archive
    that was put there by hand is unpacked, and nothing is downloaded.
    """
    states = verify(name, folder)
    for file, status in states:
        if status == "damaged":
            raise DataError(f"{file}: it is damaged; move it away, then repeat `mintnet data get`")
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
        _fetch(file, MNIST_MIRRORS, MNIST[file.name.removesuffix(".gz")], progress)
    if missing and name == "cifar10":
        _get_cifar10(missing, Path(folder).expanduser(), progress)
    return [state.file for state in (verify(name, folder) if missing else states)]


def _fetch(file: Path, mirrors: tuple[str, ...], digest: str, progress: bool) -> None:
    """Download ``file`` from the first of ``mirrors`` that has it with the published content."""
    try:
        import pooch
        import requests
    except ImportError as error:
        raise DataError.missing_extra("pooch", "downloading") from error
    download = pooch.HTTPDownloader(progressbar=progress and find_spec("tqdm") is not None)
    faults = []
    for url in (f"{mirror}/{file.name}" for mirror in mirrors):
        try:
            with whole_file(file) as part:
                download(url, str(part), None)
                if _compare(part, digest).status != "verified":
                    raise DataError("not the published content")
            return
        except requests.HTTPError as error:
            fault = f"HTTP {getattr(error.response, 'status_code', 'error')}"
        except requests.RequestException as error:
            fault = type(error).__name__
        except DataError as error:
            fault = str(error)
        faults.append(f"{url} ({fault})")
    mend = f"get it by hand, put it at {file} and run this again"
    raise DataError(f"{file.name}: no download from {' or '.join(faults)}; {mend}")


def _compare(file: Path, digest: str | None) -> FileStatus:
    """Whether a file has this md5 sum, archives as they are, others without their gzip."""
    if digest is None or not file.is_file():
        return FileStatus(file, "present" if file.is_file() else "missing")
    try:
        found = md5(file.read_bytes() if file.name in ARCHIVES else content(file))
    except DataError:
        found = ""
    return FileStatus(file, "verified" if found == digest else "damaged")


def _get_cifar10(missing: list[Path], folder: Path, progress: bool) -> None:
    """Unpack the missing files from an archive that is there, or else from a downloaded one."""
    home, versions = missing[0].parent, _VERSIONS
    if len(missing) < 6 or missing[0].name in CIFAR10_PYTHON:  # no longer free to choose
        versions = {a: v for a, v in _VERSIONS.items() if missing[0].name in v}
    kept = published.find("cifar10", folder, versions)
    archive = kept or home / next(iter(versions))
    if kept is None:
        _fetch(archive, CIFAR10_MIRRORS, ARCHIVES[archive.name], progress)
    elif _compare(kept, ARCHIVES[kept.name]).status != "verified":
        raise DataError(f"{kept}: expected the published archive; its md5 differs; remove it")
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
                write_bytes(home / name, data)
    except (KeyError, tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: cannot be unpacked ({reason(error)})") from error
    if kept is None:
        archive.unlink()
