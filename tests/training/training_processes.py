"""Processes that train, for the tests."""

import json
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")
TINY = {"pairs": [1, 1], "filters": [3, 1], "batch_size": 16}


def start(**call):
    """A process that trains; stderr is kept."""
    return subprocess.Popen(
        [sys.executable, str(WORKER), json.dumps(call)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))  # gloo chats
