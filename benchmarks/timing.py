"""Seconds and memory of a call, with the device idle before and after it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

import torch
from rich import box
from rich.table import Table

Note = Callable[[str], None]
"""Told in a line what is being measured."""

Result = TypeVar("Result")


def silent(line: str) -> None:
    """A `Note` that prints nothing."""


def timed(run: Callable[[], Result], device: torch.device) -> tuple[float, Result]:
    """Wall-clock seconds of one call, and what it returned.

    Examples:
        >>> taken, value = timed(lambda: 7, torch.device("cpu"))
        >>> taken >= 0, value
        (True, 7)
    """
    synchronize(device)
    begin = time.perf_counter()
    result = run()
    synchronize(device)
    return time.perf_counter() - begin, result


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget_peak(device: torch.device) -> None:
    """Free what is unused, and begin the measurement of a GPU's peak memory anew."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    """GiB that tensors held at most on a GPU since `forget_peak`; None on other devices."""
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device) / 2**30


def check_positive(**numbers: float) -> None:
    """Refuse counts below 1, named as their options are.

    Examples:
        >>> check_positive(calls=0)
        Traceback (most recent call last):
        ValueError: --calls is at least 1; got 0
    """
    for name, value in numbers.items():
        if not value >= 1:  # nan neither
            raise ValueError(f"--{name.replace('_', '-')} is at least 1; got {value}")


def plain_table(title: str, first: str, *others: str) -> Table:
    """A table that fits in 80 columns: words on the left, numbers right-aligned."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
