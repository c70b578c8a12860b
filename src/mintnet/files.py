"""Files that are whole or not there at all."""

import errno
import hashlib
import os
import shutil
import stat
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
    the new one. What the disk has to say names ``path``. A device or a pipe is not replaced: what
    was written goes into it at the end.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place = None if (special := is_special(path)) else path.parent
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=place) as folder:
            part = Path(folder, path.name)
            yield part
            if special:
                path.write_bytes(part.read_bytes())
                return
            _sync(part, os.O_RDWR)
            os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno is None:  # not the disk's, but of whoever wrote
            raise
        words = f"cannot be written ({os.strerror(error.errno)})"
        raise OSError(error.errno, words, str(path)) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    with whole_file(path) as part:
        part.write_bytes(data)


def is_there(path: Path) -> bool:
    """Whether something has this name, a file or not; OSError where that cannot be told."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_special(path: Path) -> bool:
    """Whether it is there and is a device, a pipe or the like: no file and no folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def readable_size(path: Path) -> int:
    """The bytes of a regular file; OSError where it cannot be read, also for a pipe or a device."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        found = os.fstat(handle)
    finally:
        os.close(handle)
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        raise OSError(errno.EINVAL, f"it is {kind}, where a file is expected", str(path))
    return found.st_size


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Force a folder's list of files to disk, where the system can do that."""
    try:
        if os.name == "posix":
            _sync(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def clear_scraps(folder: Path) -> None:
    """Remove what killed processes left of files in ``folder`` and below: nobody else may write."""
    for scrap in folder.rglob(f"{SCRATCH}*"):
        shutil.rmtree(scrap, ignore_errors=True)


def _sync(path: Path, mode: int) -> None:
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
