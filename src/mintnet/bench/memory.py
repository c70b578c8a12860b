"""How much memory something takes, and how much there is."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MEMINFO, LIMITS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


class PeakMemory:
    """The most memory that was held at once since this was made.

    Only what is held beyond what was held before: on a GPU by tensors, on Linux without a GPU by
    the process. Elsewhere nothing is known.

    Args:
        device: whose memory.
        before: on a GPU, bytes that do not count, instead of all that tensors hold now.

    Examples:
        >>> peak = PeakMemory(torch.device("cpu"))
        >>> _ = torch.ones(2**24).sum()
        >>> peak.bytes() is None or peak.bytes() > 2**25
        True
    """

    def __init__(self, device: torch.device, before: int | None = None) -> None:
        self.device = device
        self.before: int | None
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device) if before is None else before
            return
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # else what was freed before counts as held
        try:
            RESET.write_text("5")  # the highest mark begins anew
        except OSError:
            self.before = None
        else:
            self.before = _kilobytes(STATUS, "VmRSS")

    def bytes(self) -> int | None:
        """The peak so far, or None where it cannot be known."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device)) - (self.before or 0)
        highest = _kilobytes(STATUS, "VmHWM")
        if self.before is None or highest is None:
            return None
        return 1024 * (highest - self.before)


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be had, or None where it is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    kilobytes = _kilobytes(MEMINFO, "MemAvailable")
    if kilobytes is None:
        return None
    try:  # a container may have less than its machine
        limit = int((LIMITS / "memory.max").read_text())
        left = limit - int((LIMITS / "memory.current").read_text())
    except (OSError, ValueError):
        return 1024 * kilobytes
    return min(1024 * kilobytes, left)


def _kilobytes(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, IndexError, ValueError):
        return None
