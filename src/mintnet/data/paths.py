"""Where the files of a data set lie, and their bytes with or without gzip around them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, cast

from mintnet.data.dataset import DataError

_GZIP = b"\x1f\x8b"


def reason(error: BaseException) -> str:
    r"""An exception in a few words on one line.

    Examples:
        >>> reason(ValueError("two\n  lines"))
        'two lines'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."


def missing_extra(package: str, purpose: str) -> DataError:
    """The error for a package of the extra ``cli`` that is not installed."""
    return DataError(f'{purpose} needs {package}, not installed: pip install "mintnet[cli]"')


def existing(name: str, folder: str | Path | None) -> Path:
    """The folder that holds the data set ``name``, checked to be one."""
    if folder is None:
        raise DataError(f"{name}: expected the folder that holds its files; got none")
    path = Path(folder).expanduser()
    if not path.is_dir():
        state = "is a file" if path.exists() else "does not exist"
        raise DataError(f"{name}: expected a folder with its files; {path} {state}")
    return path


def places(name: str, folder: Path, *below: str) -> list[Path]:
    """Folders to look in: the set's own subfolder first, then ``folder``, each with ``below``.

    Examples:
        >>> [p.as_posix() for p in places("cifar10", Path("data"), "batches")]
        ['data/cifar10', 'data/cifar10/batches', 'data', 'data/batches']
    """
    return [base / sub for base in (folder / name, folder) for sub in ("", *below)]


def find(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """The first of ``names`` that is a file in the first of ``folders`` that has one."""
    names = tuple(names)
    return next((f / n for f in folders for n in names if (f / n).is_file()), None)


def content(path: Path) -> bytearray:
    """The bytes of a file, unpacked if they are gzip, whatever the file is called."""
    data = bytearray()
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
            while chunk := file.read(1 << 20):
                data += chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}: expected a whole gzip file; it is truncated or damaged "
            f"({reason(error)}); get it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or reason(error)})") from error
    if not data:
        raise DataError(f"{path}: expected data; the file is empty; get it again")
    return data
