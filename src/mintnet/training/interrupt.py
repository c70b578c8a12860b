"""Ctrl-C while a run trains: it ends after the step it is in, with a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mintnet.training.devices import is_first_process


class Interruption:
    """The first Ctrl-C inside `watched` is noted, a second one raises KeyboardInterrupt at once.

    A step that is broken off would leave weights and moments between two steps.
    """

    asked = at_once = False

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note Ctrl-C in this block; outside the main thread Python gives no signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: Any = signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before or signal.default_int_handler)

    @contextmanager
    def cancels(self) -> Iterator[None]:
        """Inside, already the first Ctrl-C leaves this block, and only this block."""
        self.at_once = True
        try:
            yield
        except KeyboardInterrupt:
            self.asked = True
        finally:
            self.at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked or self.at_once:
            raise KeyboardInterrupt
        self.asked = True
        if is_first_process():  # print could be interrupted in the middle of a line, and refuse
            os.write(2, b"\nstopping after this step, with a checkpoint; Ctrl-C again: at once\n")
