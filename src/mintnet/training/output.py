"""What is shown while something long is computed: its progress, and grids of samples."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

from mintnet.models.flow import Flow

FIRST, LATER = 5.0, 30.0  # seconds to the first plain line of a task, and at most between others
COUNT = 64
SEED = 1  # the same z each time, so that grids can be compared
SHARE, LEAST = 0.1, 5.0  # of training time that samples may take, and seconds in any case


class Progress(Bar):
    """One task after another: a bar on a terminal, elsewhere plain lines with the time to go."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(quiet=True)
        columns = "{task.description}", BarColumn(), "{task.fields[figures]}", TimeRemainingColumn()
        self.plain = console.quiet or not console.is_terminal
        super().__init__(*columns, console=console, transient=True, disable=self.plain)
        self.left, self._due, self._wait = "", 0.0, FIRST

    def __call__(self, words: str) -> Callable[..., None]:
        """Begin a task; gives what to call with how much is done, how much there is, and words."""
        for old in self.task_ids:
            self.remove_task(old)
        task = self.add_task(words, total=None, figures="")
        self.start()
        if self.plain:
            self.note(words)
        self.left, self._wait = "", FIRST
        self._due = time.monotonic() + FIRST
        part, calls, share, began, name = 1, 0, 0.0, (0.0, 0), words

        def progress(done: int, total: int, figures: str = "") -> None:
            nonlocal part, calls, share, began, name
            if done / total < share:  # the next part of the task has begun
                part, calls, name = part + 1, 0, f"{words}, part {part + 1}"
                self.reset(task, description=name)
            now, calls, share = time.monotonic(), calls + 1, done / total
            if calls <= 2:  # the first two are slower
                began = now, done
            elif done > began[1]:
                seconds = (now - began[0]) / (done - began[1]) * (total - done)
                self.left = f"{timedelta(seconds=round(seconds))} to go"
            self.update(task, completed=done, total=total, figures=figures)
            if self.plain and now > self._due and done < total:
                self.note("  ".join(filter(None, (f"{name}: {share:.0%}", figures, self.left))))

        return progress

    def note(self, text: str) -> None:
        """A line of its own; the next one of a task comes later."""
        self._wait = min(2 * self._wait, LATER)
        self._due = time.monotonic() + self._wait
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def figures_in_words(figures: dict[str, Any]) -> str:
    """Names and numbers on a line."""
    return "  ".join(f"{n} {x:.0f}" if x >= 100 else f"{n} {x:.3f}" for n, x in figures.items())


class Sampler:
    """Draws as many samples as the time allows, and leaves grids out that would take too long."""

    spent = 0.0  # seconds spent on samples so far
    grid_seconds: float | None = None  # what a whole grid takes, once that is known

    def draw(self, flow: Flow, elapsed: float, last: bool) -> Tensor | None:
        """Samples after so many seconds of training, (≤ 64, C, H, W) uint8, None if time is short.

        Grids before the last take half of what all of them may, so that something is left for it.
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
