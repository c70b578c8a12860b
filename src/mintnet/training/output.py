"""What a run shows while it trains: its progress on a terminal or in a file, grids of samples."""

import time
from datetime import timedelta

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

from mintnet.models.flow import Flow

FIRST, LATER = 5.0, 30.0  # seconds to the first plain line within an epoch, and between later ones
COUNT = 64
SEED = 1  # the same z each time, so that grids can be compared
SHARE, LEAST = 0.1, 5.0  # of training time that samples may take, and seconds in any case


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
        ends = MofNCompleteColumn(), "{task.fields[figures]}", TimeRemainingColumn()
        self.plain = not self.console.is_terminal
        self._bar = Bar("training", BarColumn(), *ends, console=self.console, disable=self.plain)
        self._validation: dict[str, float] = {}

    def start(self, step: int, total: int) -> None:
        self._first, self._total, self._began = step, total, time.monotonic()
        self._due = self._began + FIRST
        self._task = self._bar.add_task("", total=total, completed=step, figures="")
        self._bar.start()

    def step(self, step: int, figures: dict[str, float]) -> None:
        now, since = time.monotonic(), step - self._first - 2
        if since <= 0:  # the first two steps are slower
            self._began = now
        if not self.plain:
            words = _line({**figures, **self._validation})
            self._bar.update(self._task, completed=step, figures=words)
        elif now > self._due and since > 2:
            left = timedelta(seconds=round((now - self._began) / since * (self._total - step)))
            self.note(f"step {step}/{self._total}  {_line(figures)}  {left} to go")

    def epoch(self, epoch: int, epochs: int, figures: dict[str, float]) -> None:
        if self.plain:
            self.note(f"epoch {epoch}/{epochs}  {_line(figures)}")
        self._validation = {n: x for n, x in figures.items() if n.startswith("validation")}

    def note(self, text: str) -> None:
        self._due = time.monotonic() + LATER
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        self._bar.stop()


def _line(figures: dict[str, float]) -> str:
    return "  ".join(f"{n} {x:.0f}" if x >= 100 else f"{n} {x:.3f}" for n, x in figures.items())


class Sampler:
    """Draws as many samples as the time allows, and leaves grids out that would take too long."""

    spent = 0.0  # seconds spent on samples so far
    grid_seconds: float | None = None  # what a whole grid takes, once that is known

    def draw(self, flow: Flow, elapsed: float, last: bool) -> Tensor | None:
        """Samples after ``elapsed`` seconds of training, or None where there is no time for them.

        Grids before the last take half of what all of them may, so that something is left for it.
        Shape: (≤ 64, C, H, W), uint8.
        """
        budget = max(LEAST, SHARE * elapsed) * (1.0 if last else 0.5) - self.spent
        fits = self.grid_seconds is not None and self.grid_seconds <= budget
        if budget <= 0 or not (fits or last or self.grid_seconds is None):
            return None
        z, images = flow.sample_latents(COUNT, seed=SEED), list[Tensor]()
        began, used, drawn = time.monotonic(), 0.0, 0
        try:
            while drawn < COUNT and 2 * used <= budget:
                # 1, 1, 2, 4, …: each part takes about as long as all before
                images.append(flow.decode(z[drawn:][: COUNT if fits else max(1, drawn)]))
                drawn += len(images[-1])
                used = time.monotonic() - began
        finally:
            self.spent += time.monotonic() - began
        self.grid_seconds = used * COUNT / drawn
        return torch.cat(images)
