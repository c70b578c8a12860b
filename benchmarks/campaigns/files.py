"""Damaged files and options through the command line: one line that names the file, or nothing.

Each case damages one file (or option) of a whole set, and runs a real command in a child process,
forked from this one so that torch is imported once. The command must end with a code that is not
0 and one line on stderr, in 20 seconds and 2 GB; where it ends with 0, the damage was accepted in
silence. Kinds of damage are in `damaged_models`, `damaged_data` and `damaged_options`.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from . import damaged_data, damaged_models, damaged_options

SECONDS, BYTES = 20.0, 2e9


class Damage(NamedTuple):
    """A command in a folder with a damaged file, and what may come of it."""

    arguments: list[str]
    names: str = ""
    """What the message must name."""
    accepted: str | None = None
    """What the output says where the command goes on all the same, None where it must not."""
    room: int | None = None
    """The largest file that can be written, for a disk that is full."""


KINDS: dict[str, Callable[..., Any]] = {
    **damaged_models.KINDS,
    **damaged_data.KINDS,
    **damaged_options.KINDS,
}


def draw(rng: random.Random) -> dict[str, Any]:
    return {"kind": rng.choice(sorted(KINDS)), "seed": rng.getrandbits(31)}


def run(case: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    """Damage a copy of the whole files, run the command, and look at how it ended."""
    rng = random.Random(case["seed"])
    with tempfile.TemporaryDirectory(prefix="damaged-") as name:
        folder = Path(name)
        damage = Damage(*KINDS[case["kind"]](rng, templates(), folder))
        code, text, seconds, memory = in_child(damage, folder)
    counts = {case["kind"].split(":")[0]: 1}
    last = text.strip().splitlines()[-1] if text.strip() else ""
    about = f"{' '.join(damage.arguments)}: "
    failures = []
    if "Traceback (most recent call last)" in text:
        failures.append(f"traceback: {about}{last}")
    elif seconds > SECONDS:
        failures.append(f"hang: {about}more than {SECONDS:g} s")
    elif memory > BYTES:
        failures.append(f"memory: {about}{memory / 1e9:.1f} GB")
    elif code == 0 and (damage.accepted is None or damage.accepted not in text):
        failures.append(f"silent: {about}exit 0")
    elif code != 0 and damage.accepted is not None:
        failures.append(f"refused: {about}exit {code}: {last}")
    elif code == 1 and not last.startswith("mintnet: error: "):
        failures.append(f"no line: {about}{last}")
    elif code == 1 and damage.names not in last:
        failures.append(f"not named ({damage.names}): {about}{last}")
    elif code not in (0, 1, 2):
        failures.append(f"ended with {code}: {about}{last}")
    return counts, failures


def in_child(damage: Damage, folder: Path) -> tuple[int, str, float, float]:
    """Exit code, what was printed, seconds and bytes of a command in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_command(damage, folder, writing)
    os.close(writing)
    os.set_blocking(reading, False)
    began, peak, printed, status = time.monotonic(), 0.0, b"", None
    while status is None:
        done, found = os.waitpid(child, os.WNOHANG)
        status = found if done else None
        seconds, peak = time.monotonic() - began, max(peak, _resident(child))
        if status is None and (seconds > SECONDS or peak > BYTES):
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        with suppress(BlockingIOError):
            while chunk := os.read(reading, 1 << 16):
                printed += chunk
        time.sleep(0.02)
    os.close(reading)
    code = os.waitstatus_to_exitcode(status)
    return code, printed.decode(errors="replace"), time.monotonic() - began, peak


def _be_the_command(damage: Damage, folder: Path, writing: int) -> None:
    """In the child: `mintnet` with these arguments, its output into a pipe; never returns."""
    from mintnet.cli.app import run as command

    code = 1
    try:
        for stream in (1, 2):
            os.dup2(writing, stream)
        sys.stdout, sys.stderr = (
            os.fdopen(1, "w"),
            os.fdopen(2, "w"),
        )  # a test may have replaced them
        logging.getLogger().handlers.clear()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        if damage.room is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (damage.room, damage.room))
        command(damage.arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _resident(process: int) -> float:
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0.0
    return float(pages) * os.sysconf("SC_PAGE_SIZE")


@cache
def templates() -> Path:
    """Whole files of every kind, made once: models, a run, data sets, pictures, a checkpoint."""
    import mintnet.cli.app
    import mintnet.training
    from mintnet.models import Classifier, ClassifierConfig, Flow, MintNetConfig, Pixels
    from mintnet.models.deep import DeepConfig

    torch.set_num_threads(1)
    torch.manual_seed(0)
    home = Path(tempfile.mkdtemp(prefix="whole-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name, shape in {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "tiny": (1, 8, 8)}.items():
        levels = 17 if name == "tiny" else 256
        data = {"name": "digits" if name == "tiny" else name}
        Flow(MintNetConfig(shape, (1, 1), (1, 1)), 0.05, levels).save(home / name, data=data)
    deep = DeepConfig((1, 8, 8), (1,), (2,), (1,), (2,), classes=3)
    Flow(deep, None, 17).save(home / "deep", data={"name": "digits"})
    pixels = Pixels((3, 32, 32))
    config = ClassifierConfig(4, (1,), (1,))
    Classifier(config, pixels).save(home / "classifier", data={"name": "cifar10"})
    options: dict[str, Any] = {"pairs": (1,), "filters": (1,), "max_steps": 2, "sample_every": 0}
    mintnet.training.train("digits", home / "run", batch_size=8, validation=0.0, **options)
    mintnet.training.train(
        "digits", home / "other-run", batch_size=8, validation=0.0, **{**options, "filters": (2,)}
    )
    fixtures = Path(__file__).parents[2] / "tests" / "fixtures"
    for name in ("original_density_grey.pth", "original_classifier.pth"):
        shutil.copy(fixtures / name, home / name)
    rng = np.random.default_rng(0)
    damaged_data.write_whole(home, rng)
    (home / "pictures").mkdir()
    for number in range(12):
        pixels_of = rng.integers(0, 256, (36, 36, 3), np.uint8)
        Image.fromarray(pixels_of).save(home / "pictures" / f"{number:02}.png")
    return home
