"""Files that are whole or not there at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRATCH = ".part-"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write what is to become the file ``path``.

    That is a file of the same name in a hidden neighbour folder. At the end it is forced to disk
    and takes its place: whenever the power or the process goes, either the old file is there or
    the new one. After an exception the old one stays. What the disk has to say names ``path``.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with whole_file(Path(folder, "new", "a.txt")) as part:
        ...         _ = part.write_text("whole")
        ...     Path(folder, "new", "a.txt").read_text(), os.listdir(f"{folder}/new")
        ('whole', ['a.txt'])
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=path.parent) as folder:
            part = Path(folder, path.name)
            yield part
            _sync(part, os.O_RDWR)
            os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno is None:  # not the disk's, but of whoever wrote
            raise
        words = f"cannot be written ({os.strerror(error.errno)})"
        raise OSError(error.errno, words, str(path)) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_bytes(Path(folder, "a"), b"whole")
        ...     Path(folder, "a").read_bytes()
        b'whole'
    """
    with whole_file(path) as part:
        part.write_bytes(data)


def sha256(path: Path) -> str:
    """The hash by which a file is known to be the one that was meant.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_bytes(Path(folder, "a"), b"whole")
        ...     sha256(Path(folder, "a"))[:12]
        '5d5766cf2d78'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Force a folder's list of files to disk, where the system can do that."""
    if os.name != "posix":
        return
    try:
        _sync(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def clear_scraps(folder: Path) -> None:
    """Remove what killed processes left of files in ``folder`` and below: nobody else may write.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, ".part-x").mkdir()
        ...     clear_scraps(Path(folder))
        ...     os.listdir(folder)
        []
    """
    for scrap in folder.rglob(f"{SCRATCH}*"):
        shutil.rmtree(scrap, ignore_errors=True)


def _sync(path: Path, mode: int) -> None:
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
