"""Processes that train, and checkpoints, for the tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mintnet.training import RunFolder
from mintnet.training.step import Step

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


def contents(folder):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def before_step(monkeypatch, action):
    """Call ``action(step, number)`` before each step of training."""
    take = Step.__call__

    def watched(self, *arguments, **named):
        action(self, named["number"])
        return take(self, *arguments, **named)

    monkeypatch.setattr(Step, "__call__", watched)


class Stop(Exception):
    pass


def stopped_at(monkeypatch, tiny, run, step, **options):
    """A run that is broken off before a step, as by a kill."""

    def stop(_, number):
        if number == step:
            raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        before_step(patch, stop)
        tiny(run, **options)
