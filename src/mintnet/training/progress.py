"""How a run looks on a terminal, and in a log file."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

_log = logging.getLogger(__name__)


class Progress(Protocol):
    """What a run tells whoever watches it."""

    def start(self, step: int, total: int) -> None:
        """The run begins at a step."""
        ...

    def step(self, step: int, figures: dict[str, float]) -> None:
        """A step is done."""
        ...

    def epoch(self, epoch: int, epochs: int, figures: dict[str, float]) -> None:
        """An epoch is done."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...

    def stop(self) -> None:
        """The run is over, one way or the other."""
        ...


class Silent:
    """Prints nothing; notes go to Python's logging, as information.

    Examples:
        >>> Silent().note("not a word is printed")
    """

    def start(self, step: int, total: int) -> None: ...

    def step(self, step: int, figures: dict[str, float]) -> None: ...

    def epoch(self, epoch: int, epochs: int, figures: dict[str, float]) -> None: ...

    def note(self, text: str) -> None:
        _log.info("%s", text)

    def stop(self) -> None: ...


class ConsoleProgress:
    """A bar with bpd and images/s on a terminal; elsewhere one line for each epoch.

    Examples:
        >>> import sys
        >>> progress = ConsoleProgress(Console(file=sys.stdout, width=60, force_terminal=False))
        >>> progress.epoch(1, 3, {"bpd": 2.5, "images/s": 900.0})
        epoch 1/3  bpd 2.500  images/s 900
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._bar: Bar | None = None
        self._task: Any = None
        self._held: dict[str, float] = {}

    def start(self, step: int, total: int) -> None:
        if not self.console.is_terminal:
            return
        self._bar = Bar(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self.console,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("", total=total, completed=step, figures="")
        self._bar.start()

    def step(self, step: int, figures: dict[str, float]) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=step, figures=_line({**figures, **self._held}))

    def epoch(self, epoch: int, epochs: int, figures: dict[str, float]) -> None:
        if self._bar is None:
            self.note(f"epoch {epoch}/{epochs}  {_line(figures)}")
        self._held = {name: x for name, x in figures.items() if name.startswith("validation")}

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _line(figures: dict[str, float]) -> str:
    return "  ".join(
        f"{name} {value:.0f}" if value >= 100 else f"{name} {value:.3f}"
        for name, value in figures.items()
    )
