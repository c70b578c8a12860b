"""How fast a run can be where it takes place: precision, kernels, and why not."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from importlib import import_module

import torch

from mintnet.kernels import HAS_TRITON
from mintnet.training.devices import Devices
from mintnet.training.task import FastPath, Task

OLDEST = (7, 0)
"""The least compute capability that Triton takes."""


def chosen_precision(devices: Devices) -> str:
    """What ``auto`` means here: bf16 where matrix units have it, else float32.

    Examples:
        >>> chosen_precision(Devices(accelerator="cpu"))
        'float32'
    """
    return "bf16" if devices.cuda and torch.cuda.get_device_capability() >= (8, 0) else "float32"


def fast_path(task: Task, precision: str, devices: Devices) -> tuple[FastPath | None, str]:
    """The fast path of a task, or None and the reason; with a path, what is worth saying of it.

    Examples:
        >>> from mintnet.models import Flow
        >>> from mintnet.training.task import DensityTask
        >>> fast_path(DensityTask(Flow.preset("digits")), "float32", Devices(accelerator="cpu"))
        (None, 'plain kernels: there is no GPU')
    """
    if not devices.cuda:
        return _compiled_path(task, precision, devices)
    if not devices.fast:
        return None, "plain kernels, as asked"
    if precision == "float64":
        return None, "plain kernels: the fast ones have no float64"
    if reason := task.why_not_fast():
        return None, f"plain kernels: {reason}"
    if precision == "bf16" and torch.cuda.get_device_capability() < (8, 0):
        return None, "plain kernels: this GPU has no bf16"
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if reason := why_not_compiled():
        return FastPath(dtype, compiled=False), (
            f"fast kernels in {precision}, not compiled: {reason}"
        )
    return FastPath(dtype, compiled=True), f"fast kernels in {precision}; compiling takes a minute"


def _compiled_path(task: Task, precision: str, devices: Devices) -> tuple[FastPath | None, str]:
    """Without a GPU, layers are compiled where that is asked for: it takes minutes."""
    if not devices.compile:
        return None, "plain kernels: there is no GPU"
    if precision != "float32":
        return None, f"plain kernels: without a GPU, none are compiled in {precision}"
    if reason := task.why_not_fast():
        return None, f"plain kernels: {reason}"
    if not has_compiler():
        return None, "plain kernels: there is no C++ compiler that runs"
    return FastPath(
        torch.float32, compiled=True
    ), "compiled kernels; compiling takes minutes the first time"


def why_not_compiled() -> str:
    """Why torch.compile cannot serve on the GPU, or nothing if it can."""
    if not HAS_TRITON:
        return "Triton is not installed"
    try:
        import_module("triton")
    except Exception as error:  # a damaged or foreign build can raise anything
        return f"Triton cannot be imported ({type(error).__name__})"
    if torch.cuda.get_device_capability() < OLDEST:
        return "this GPU is too old for Triton"
    if not _is_there(os.environ.get("CC"), "gcc", "clang"):
        return "there is no C compiler, which Triton needs"
    return ""


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which torch.compile needs on a CPU.

    Examples:
        >>> has_compiler() in (True, False)
        True
    """
    named = os.environ.get("CXX")
    if named:  # torch.compile takes it, whatever it is
        return _runs(named)
    return _is_there("g++", "clang++", "c++")


@lru_cache
def _runs(program: str) -> bool:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _is_there(*programs: str | None) -> bool:
    return any(name and shutil.which(name) for name in programs)
