"""What a figure was measured on, and how time is taken."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import median_low
from typing import Any

import torch


def machine(device: torch.device) -> dict[str, Any]:
    """The device, its threads and the versions, as plain data."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tf32": torch.backends.cudnn.allow_tf32,
    }


def commit() -> str:
    """The commit that this code is of, with "-dirty" if it was changed since.

    Where the package is not in a checkout of its own, its version stands in: "mintnet 0.1.0".
    """
    folder = str(Path(__file__).parent)

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, text=True, check=True, timeout=20
        )
        return done.stdout.strip()

    try:
        # An installed package may lie in someone else's repository, which does not track it.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--exclude=*", "--abbrev=12")
    except (OSError, subprocess.SubprocessError):
        return f"mintnet {version('mintnet')}"


def seconds(
    run: Callable[[], object], device: torch.device, repeats: int = 1, most: float = float("inf")
) -> float:
    """The median wall-clock time of a call, with the device idle before and after it.

    No call begins after ``most`` seconds, the first aside. Of an even number, the lower of the two
    in the middle is taken: a machine that is busy elsewhere only adds.
    """
    return median_low(timings({"": run}, device, repeats, most)[""])


def timings(
    runs: Mapping[str, Callable[[], object]],
    device: torch.device,
    repeats: int,
    most: float = float("inf"),
) -> dict[str, list[float]]:
    """Wall-clock seconds of calls that take turns, so that a busy machine slows all of them.

    No round begins after ``most`` seconds of calls, the first aside.

    Examples:
        >>> taken = timings({"a": list, "b": dict}, torch.device("cpu"), repeats=3)
        >>> [len(times) for times in taken.values()]
        [3, 3]
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    total = 0.0
    for number in range(repeats):
        if number and total >= most:
            break
        for name, run in runs.items():
            synchronize(device)
            begin = time.perf_counter()
            run()
            synchronize(device)
            taken[name].append(time.perf_counter() - begin)
            total += taken[name][-1]
    return taken


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or "CPU"
