"""What a run shows while it trains: its progress on a terminal or in a file, grids of samples."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

from mintnet.files import whole_file
from mintnet.models.flow import Flow

FIRST, LATER = 5.0, 30.0
"""Seconds until the first plain line within an epoch, and between later ones."""
COUNT = 64
SEED = 1  # the same z each time, so that grids can be compared
SHARE = 0.1
"""Of the time of training that samples may take; ``LEAST`` seconds in any case."""
LEAST = 5.0


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

    def start(self, step: int, total: int) -> None:
        """The run begins at a step."""
        self._first, self._total, self._began = step, total, time.monotonic()
        self._due = self._began + FIRST
        if self.console.is_terminal:
            ends = MofNCompleteColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn()
            self._bar = Bar(TextColumn("training"), BarColumn(), *ends, console=self.console)
            self._task = self._bar.add_task("", total=total, completed=step, figures="")
            self._bar.start()

    def step(self, step: int, figures: dict[str, float]) -> None:
        """A step is done."""
        now, since = time.monotonic(), step - self._first - 2
        if since <= 0:  # the first two steps are slower
            self._began = now
        if self._bar is not None:
            words = _line({**figures, **self._validation})
            self._bar.update(self._task, completed=step, figures=words)
        elif now > self._due and since > 2:
            left = _duration((now - self._began) / since * (self._total - step))
            self.note(f"step {step}/{self._total}  {_line(figures)}  {left} to go")

    def epoch(self, epoch: int, epochs: int, figures: dict[str, float]) -> None:
        """An epoch is done."""
        if self._bar is None:
            self.note(f"epoch {epoch}/{epochs}  {_line(figures)}")
        self._validation = {n: x for n, x in figures.items() if n.startswith("validation")}

    def note(self, text: str) -> None:
        """Something worth a line."""
        self._due = time.monotonic() + LATER
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """The run is over."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _line(figures: dict[str, float]) -> str:
    return "  ".join(f"{n} {x:.0f}" if x >= 100 else f"{n} {x:.3f}" for n, x in figures.items())


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


class Sampler:
    """Draws as many samples as the time allows, and leaves grids out that would take too long."""

    spent = 0.0
    """Seconds spent on samples so far."""
    grid_seconds: float | None = None
    """What a whole grid takes, once that is known."""

    def draw(self, flow: Flow, elapsed: float, last: bool) -> Tensor | None:
        """Samples after ``elapsed`` seconds of training, or None where there is no time for them.

        Grids before the last take half of what all of them may, so that something is left for it.
        Shape: (≤ 64, C, H, W), uint8.
        """
        budget = max(LEAST, SHARE * elapsed) * (1.0 if last else 0.5) - self.spent
        fits = None if self.grid_seconds is None else self.grid_seconds <= budget
        if budget <= 0 or (fits is False and not last):
            return None
        z, images, began, used = flow.sample_latents(COUNT, seed=SEED), [], time.monotonic(), 0.0
        drawn = 0
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


def save_grid(path: Path, images: Tensor, levels: int) -> None:
    """Images (n, C, H, W) side by side in about a square, small ones enlarged, as a PNG file."""
    from PIL import Image

    count, c, h, w = images.shape
    columns, scale = math.ceil(math.sqrt(count)), max(1, 32 // w)
    rows = math.ceil(count / columns)
    tiles = torch.full((rows * columns, c, h + 1, w + 1), 128.0)
    tiles[:count, :, 1:, 1:] = images.cpu() * (255 / (levels - 1))
    lines = tiles.unflatten(0, (rows, columns)).permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)
    canvas = torch.nn.functional.pad(lines, (0, 0, 0, 1, 0, 1), value=128.0).round().byte()
    pixels = canvas.repeat_interleave(scale, 0).repeat_interleave(scale, 1).numpy()
    with whole_file(path) as part:
        Image.fromarray(pixels.squeeze(-1) if c == 1 else pixels).save(part)
