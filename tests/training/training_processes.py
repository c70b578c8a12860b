"""Processes that train, and checkpoints, for the tests."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from mintnet.training import RunFolder

WORKER = Path(__file__).with_name("worker.py")
TINY = {"pairs": [1, 1], "filters": [3, 1], "batch_size": 16, "sample_every": 0}


def start(environment=None, **call):
    """A process that trains; stderr is kept."""
    return subprocess.Popen(
        [sys.executable, str(WORKER), json.dumps(call)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(process):
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))  # gloo chats


def state(run):
    """The checkpoint of a run."""
    return RunFolder(run).read_checkpoint()


def same(a, b):
    """Whether nested tensors are the same to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def same_state(a, b):
    """Whether two runs have the same weights, moments and EMA weights, to the bit."""
    return all(same(state(a)[name], state(b)[name]) for name in ("model", "optimizer", "averaged"))
