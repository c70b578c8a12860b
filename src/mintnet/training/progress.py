"""How a run looks on a terminal, and as plain lines in a pipe or a file."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

SECONDS = 30.0
"""Between two plain lines within an epoch."""


class Progress:
    """A bar with the figures on a terminal; elsewhere a line for each epoch and half minute.

    Examples:
        >>> import sys
        >>> progress = Progress(Console(file=sys.stdout, width=60, force_terminal=False))
        >>> progress.epoch(1, 3, {"bpd": 2.5, "images/s": 900.0})
        epoch 1/3  bpd 2.500  images/s 900
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(quiet=True)
        self._bar: Bar | None = None
        self._task: Any = None
        self._validation: dict[str, float] = {}
        self._total, self._printed = 0, time.monotonic()

    def start(self, step: int, total: int) -> None:
        """The run begins at a step."""
        self._total = total
        if self.console.is_terminal:
            ends = MofNCompleteColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn()
            self._bar = Bar(TextColumn("training"), BarColumn(), *ends, console=self.console)
            self._task = self._bar.add_task("", total=total, completed=step, figures="")
            self._bar.start()

    def step(self, step: int, figures: dict[str, float]) -> None:
        """A step is done."""
        if self._bar is not None:
            words = _line({**figures, **self._validation})
            self._bar.update(self._task, completed=step, figures=words)
        elif time.monotonic() - self._printed > SECONDS:
            self.note(f"step {step}/{self._total}  {_line(figures)}")

    def epoch(self, epoch: int, epochs: int, figures: dict[str, float]) -> None:
        """An epoch is done."""
        if self._bar is None:
            self.note(f"epoch {epoch}/{epochs}  {_line(figures)}")
        self._validation = {n: x for n, x in figures.items() if n.startswith("validation")}

    def note(self, text: str) -> None:
        """Something worth a line."""
        self._printed = time.monotonic()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """The run is over."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _line(figures: dict[str, float]) -> str:
    return "  ".join(f"{n} {x:.0f}" if x >= 100 else f"{n} {x:.3f}" for n, x in figures.items())
