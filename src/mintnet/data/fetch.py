"""One file from the network, checked before it gets its name.

Files are written under another name first, so that an interrupted download leaves none behind
that looks whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from mintnet.data.dataset import DataError
from mintnet.data.paths import reason
from mintnet.files import whole_file


class _MirrorError(Exception):
    """A mirror does not answer, or not with the published file."""


def fetch(
    file: Path, mirrors: Sequence[str], published: Callable[[Path], bool], progress: bool = False
) -> None:
    """Download ``file`` from the first of ``mirrors`` that has it so that ``published`` holds.

    Examples:
        >>> fetch(Path("data.gz"), [], lambda path: True)
        Traceback (most recent call last):
        mintnet.data.dataset.DataError: data.gz: could not be downloaded ...
    """
    import pooch  # loaded only where it is needed, and requests with it
    import requests

    download = pooch.HTTPDownloader(progressbar=progress and find_spec("tqdm") is not None)
    faults = []
    for mirror in mirrors:
        url = f"{mirror}/{file.name}"

        def fill(path: Path, url: str = url) -> None:
            try:
                download(url, str(path), None)
            except requests.RequestException as error:
                code = None if error.response is None else error.response.status_code
                raise _MirrorError(f"HTTP {code}" if code else type(error).__name__) from error
            try:
                whole = published(path)
            except DataError:
                whole = False
            if not whole:
                raise _MirrorError("not the published content")

        try:
            write(file, fill)
        except _MirrorError as error:
            faults.append(f"{url} ({error})")
        else:
            return
    raise DataError(
        f"{file.name}: could not be downloaded from {' or '.join(faults) or 'anywhere'}; "
        f"get it by hand and put it at {file}, then run this again"
    )


def write(file: Path, fill: Callable[[Path], object]) -> None:
    """Let ``fill`` write a file of the same name, then put it in the place of ``file``.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(Path(folder, "new", "a.txt"), lambda path: path.write_text("whole"))
        ...     Path(folder, "new", "a.txt").read_text()
        'whole'
    """
    try:
        with whole_file(file) as part:
            fill(part)
    except OSError as error:
        words = error.strerror or f"cannot be written ({reason(error)})"
        raise DataError(f"{file}: {words}") from error
