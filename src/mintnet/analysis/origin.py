"""What figures come from: the commit, and the machine that computed them."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def machine(device: torch.device) -> dict[str, Any]:
    """The device, its threads and the versions, as plain data.

    Examples:
        >>> machine(torch.device("cpu"))["torch"] == torch.__version__
        True
    """
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


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or "CPU"
