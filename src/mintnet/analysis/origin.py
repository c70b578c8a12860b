"""What figures come from: the commit, and the machine that computed them."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def machine(device: torch.device) -> dict[str, Any]:
    """The device, its threads and the versions, as plain data."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tf32": torch.backends.cudnn.allow_tf32,
    }


def commit() -> str:
    """The commit of this code, "-dirty" if it was changed since; its version outside a checkout."""

    def git(*words: str) -> str:
        call = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(call, capture_output=True, text=True, check=True, timeout=20).stdout

    try:
        # An installed package may lie in someone else's repository, which does not track it.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        dirty = "-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""
        return git("rev-parse", "--short=12", "HEAD").strip() + dirty
    except (OSError, subprocess.SubprocessError):
        return f"mintnet {version('mintnet')}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or "CPU"
