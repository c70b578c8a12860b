"""Ctrl-C while a run trains: it ends after the step it is in, with a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stopped(Exception):
    """The run has saved what it has, because someone wants it to end."""


class Interruption:
    """Inside, the first Ctrl-C is noted for whoever asks; a second one is as usual.

    A step that is broken off leaves weights and moments between two steps, from which no run could
    go on as if nothing had been. Python lets only the main thread wait for signals; in others
    nothing changes.

    Args:
        wanted: False changes nothing either: processes that train together must not stop at
            steps of their own.

    Examples:
        >>> with Interruption() as interruption:
        ...     interruption.asked
        False
    """

    def __init__(self, wanted: bool = True) -> None:
        self.asked = False
        self._wanted = wanted and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Interruption:
        if self._wanted:
            self._before: Any = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._wanted:
            # None: it was not set from Python, and cannot be restored
            signal.signal(signal.SIGINT, self._before or signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        # print could find itself interrupted in the middle of a line, and refuse
        words = b"after this step (and samples, if they are being drawn), with a checkpoint"
        os.write(2, b"\nstopping " + words + b"; Ctrl-C again: at once\n")
