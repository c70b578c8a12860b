"""Options that make no sense, full disks and odd places to write to; see `damaged_models`."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Made = tuple[Any, ...]

WHOLE = ["0.9", "nan", "inf", "true", "-", "", "1e3", "0x10", "two", str(10**400), "--"]
REAL = ["nan", "inf", "-inf", "1e999", "a", "", "0", "-1", "0,5"]
SAMPLE: dict[str, list[str]] = {
    "--seed": [*WHOLE, str(2**64), str(-(2**64))],
    "-n": [*WHOLE, "0", "-1", str(10**13), str(2**70)],
    "--batch-size": [*WHOLE, "0", "-1"],
    "--temperature": [*REAL, "1e300", "1e-300"],
    "--label": [*WHOLE, "3", "-1"],
    "--solver": ["", "newton", "3"],
    "--device": ["", "abacus", "cuda:99", "meta", "-1"],
    "--out": ["", "/", "/proc/no", "a.txt", "\0", "x" * 300 + ".png", "file/s.png"],
    "--json": ["", "/", "/proc/no", "\0", "x" * 300, "file/s.json"],
}
TRAIN: dict[str, list[str]] = {
    "--epochs": [*WHOLE, "0", "-1"],
    "--batch-size": [*WHOLE, "0", "-1"],
    "--lr": REAL,
    "--seed": [*WHOLE, str(2**70)],
    "--filters": [*WHOLE[:8], "0", "-1", "15000", str(2**40), "1 2 3"],
    "--pairs": [*WHOLE[:8], "0", "-1", "100000000", "1 1 1 1 1 1"],
    "--kernel-size": [*WHOLE, "0", "2", "-3", "1001"],
    "--validation": [*REAL[:6], "1", "2", "-0.1"],
    "--clip": ["nan", "inf", "-1", "a"],
    "--ema": ["nan", "1", "2", "-1"],
    "--warmup": [*WHOLE, "-1"],
    "--max-steps": [*WHOLE[:9], "-1"],
    "--logit-lambda": [*REAL, "0.5", "2"],
    "--precision": ["float8", "", "16"],
    "--init": ["", "nowhere", "file", "/", "\0"],
    "--run": ["", "file", "/proc/no", "\0", "full"],
}
EVALUATE: dict[str, list[str]] = {
    "--draws": [*WHOLE, "0", "-1"],
    "--seed": [*WHOLE, str(2**64)],
    "-n": [*WHOLE, "0", "-1"],
    "--batch-size": [*WHOLE, "0", "-1"],
    "--data": ["", "nowhere", "file", "\0", "full"],
    "--data-set": ["", "mnits", "folder", "digits", "cifar10"],
    "--bound": ["", "best"],
    "--devices": ["0", "-1", "a", ""],
}


def scene(folder: Path) -> None:
    (folder / "file").write_text("a file")
    (folder / "full").mkdir()
    (folder / "full" / "something").write_text("x")


def option(rng: random.Random, home: Path, folder: Path) -> Made:
    """An option that is no number, not finite, below or far above what it may be."""
    scene(folder)
    kind = rng.choice(["sample", "train", "evaluate"])
    table = {"sample": SAMPLE, "train": TRAIN, "evaluate": EVALUATE}[kind]
    name = rng.choice(list(table))
    value = rng.choice(table[name])
    values = value.split(" ") if name in ("--filters", "--pairs") else [value]
    base = {
        "sample": ["sample", str(home / "tiny")],
        "train": ["train", "digits", "--max-steps", "1", "--sample-every", "0"],
        "evaluate": ["evaluate", str(home / "tiny")],
    }[kind]
    if name in ("--data", "--data-set"):
        base = ["evaluate", str(home / "mnist")]
    if name == "--max-steps":
        base = ["train", "digits", "--sample-every", "0"]
    return [*base, name, *values], ""


def full_disk(rng: random.Random, home: Path, folder: Path) -> Made:
    """No file can grow beyond a few bytes."""
    shutil.copy(home / "original_density_grey.pth", folder / "a.pth")
    tiny = str(home / "tiny")
    argv = rng.choice(
        [
            ["sample", tiny, "-n", "1", "--out", "out.png"],
            ["sample", tiny, "-n", "1", "--out", "out.npy"],
            ["sample", tiny, "-n", "1", "--out", "out/"],
            ["import-original", "a.pth", "out"],
            ["info", tiny, "--json", "out.json"],
            ["train", "digits", "--pairs", "1", "--filters", "1", "--max-steps", "1"],
        ]
    )
    return argv, "", None, 40  # what it prints fits


def through(rng: random.Random, home: Path, folder: Path) -> Made:
    """Figures go into a device, which stays one."""
    place = rng.choice(["/dev/null", "/dev/stdout", "/dev/stderr"])
    return ["info", str(home / "tiny"), "--json", place], "", "tiny"


KINDS: dict[str, Callable[..., Any]] = {
    "options:value": option,
    "options:value-2": option,
    "options:value-3": option,
    "options:disk": full_disk,
    "options:device": through,
}
