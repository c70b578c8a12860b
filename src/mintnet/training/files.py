"""Errors of a run that a person can act on."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError


class RunError(ValueError):
    """A run that cannot start or go on, in one line."""


@contextlib.contextmanager
def disk_errors(run: Path) -> Iterator[None]:
    """Turn what the disk says while a run writes into one line that says what to do.

    TensorBoard writes in a thread of its own, which would print a traceback on the same occasion.
    """
    hook = threading.excepthook

    def quieter(failure: threading.ExceptHookArgs) -> None:
        if getattr(failure.exc_value, "errno", None) not in _DISK:
            hook(failure)

    threading.excepthook = quieter
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        raise RunError(_explained(run, os.strerror(error.errno))) from error
    except SafetensorError as error:
        raise RunError(_explained(run, " ".join(str(error).split()))) from error
    finally:
        threading.excepthook = hook


def _explained(run: Path, reason: str) -> str:
    return (
        f"{run} cannot be written ({reason}); what was saved before is intact: make room or "
        f"mend it, then go on with --resume"
    )


_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}
