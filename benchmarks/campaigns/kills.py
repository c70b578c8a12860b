"""Runs killed by SIGKILL and resumed, and several trainers in one folder.

A tiny run of digits, of one process or two, is killed a few times: after some time, or by itself
right before or after its n-th call of a function that writes. Then it is resumed to its end and
must be, bit for bit, the run that nobody disturbed: weights, moments, EMA weights, saved models,
figures and grids, with no file left over. Processes are forked from one that has torch loaded.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

PRESETS: dict[str, dict[str, Any]] = {
    "digits": {"pairs": (1, 1), "filters": (3, 1)},
    "digits-deep": {"filters": (4,), "blocks": (1,), "components": (2,)},
    "digits-classifier": {"pairs": (1, 1)},
}
RUN: dict[str, Any] = {
    "batch_size": 160,
    "max_steps": 20,
    "ema": 0.9,
    "accelerator": "cpu",
}  # 8 steps an epoch
CALLS = ("fsync", "replace", "metrics", "step")
SECONDS = 120.0
"""After which a process that has not ended hangs."""


def draw(rng: random.Random) -> dict[str, Any]:
    case: dict[str, Any] = {"preset": rng.choice(list(PRESETS)), "seed": rng.randrange(3)}
    if rng.random() < 0.2:
        delays = [round(rng.choice((0.0, 0.3, 2.0)) * rng.random(), 3) for _ in range(2)]
        return {**case, "rivals": delays, "resume": rng.random() < 0.5}
    case["processes"] = rng.choice((1, 1, 2))
    case["sample_every"] = rng.choice((0, 5))
    case["checkpoint_every"] = rng.choice((1, 2, 3, 7))
    case["kills"] = [_moment(rng, case["processes"]) for _ in range(rng.randint(1, 6))]
    return case


def _moment(rng: random.Random, processes: int) -> dict[str, Any]:
    """When to kill: all processes after some time, or one that has met the others."""
    if rng.random() < 0.4:
        return {"seconds": round(rng.uniform(0.0, 3.0), 3)}
    rank = rng.randrange(processes)
    call = "step" if rank else rng.choice(CALLS)
    return {"rank": rank, "call": call, "number": rng.randint(1, 12), "after": rng.random() < 0.5}


def run(case: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    with tempfile.TemporaryDirectory() as place:
        return (_rivals if "rivals" in case else _kills)(case, Path(place))


def _kills(case: dict[str, Any], place: Path) -> tuple[dict[str, int], list[str]]:
    folder, failures, kills = place / "run", list[str](), 0
    count, limits = case["processes"], {k: case[k] for k in ("sample_every", "checkpoint_every")}
    options = {"preset": case["preset"], "seed": case["seed"], **limits}
    for number, moment in enumerate([*case["kills"], None]):
        said = _train(place / f"said-{number}", folder, count, moment, resume=True, **options)
        ends = [one["code"] for one in said]
        if moment is not None and -signal.SIGKILL in ends:
            kills += 1
            lines = _after_kill(folder, said[0]["saved"], "classifier" in case["preset"])
            failures += [f"kill {number}: {line}" for line in lines]
            others = [one for one in said if one["code"] not in (-signal.SIGKILL, 0, 1)]
            failures += [f"kill {number}: the other process ended with {o}" for o in others]
        elif any(ends):
            return {"kills": kills}, [*failures, f"ended with {said}"]
        else:
            break  # it came to its end before the moment did
    whole = _reference(case["preset"], case["seed"], count, case["sample_every"])
    return {"kills": kills, "runs": 1}, [*failures, *_differences(whole, folder)]


def _rivals(case: dict[str, Any], place: Path) -> tuple[dict[str, int], list[str]]:
    """Trainers of other seeds in one folder at the same time: one wins, and nothing is mixed."""
    options = {"preset": case["preset"], "resume": case["resume"], "checkpoint_every": 1}
    starts: list[Any] = [
        (place / str(k), place / "run", {**options, "seed": k, "sample_every": 0}, None, {}, delay)
        for k, delay in enumerate(case["rivals"])
    ]
    said = _ended([_start(*start) for start in starts], starts)
    won = [k for k, one in enumerate(said) if one["code"] == 0]
    failures = [f"{len(won)} of {len(said)} have won: {said}"] if len(won) != 1 else []
    told = ("is in use by process", "holds a run", "was begun with")
    for one in said:
        if one["code"] and not any(words in one.get("error", "") for words in told):
            failures.append(f"refused without a reason: {one}")
    in_use = sum("in use" in one.get("error", "") for one in said)
    if won:
        failures += _differences(_reference(case["preset"], won[0], 1, 0), place / "run")
    return {"rivals": 1, "rivals_met": in_use}, failures


def _after_kill(folder: Path, saved: int, classifier: bool) -> list[str]:
    """What a kill has spoilt: the checkpoint that was written last must be there, whole."""
    from mintnet import Classifier, Flow
    from mintnet.training import RunFolder

    run, failures = RunFolder(folder), list[str]()
    step = (run.read_checkpoint() or {"step": 0})["step"]
    if step < saved:
        failures.append(f"step {saved} was saved, and the checkpoint is of {step}")
    for model in (run.last, run.best):
        if (model / "config.json").exists():
            (Classifier if classifier else Flow).load(model)
    return failures


def _differences(one: Path, two: Path) -> list[str]:
    """In what two finished runs differ."""
    from mintnet.training import RunFolder

    failures, runs = list[str](), (RunFolder(one), RunFolder(two))
    states = [run.read_checkpoint() or {} for run in runs]
    for name in ("step", "model", "averaged", "optimizer", "best", "best_step"):
        if not _same(states[0].get(name), states[1].get(name)):
            failures.append(f"{name} of the checkpoint is another")
    for name in ("last", "best"):
        files = [(run.path / name / "model.safetensors").read_bytes() for run in runs]
        if files[0] != files[1]:
            failures.append(f"the weights in {name} are others")
    rows = [[_comparable(row) for row in run.metrics()] for run in runs]
    if rows[0] != rows[1]:
        unlike = [pair for pair in zip(*rows, strict=False) if pair[0] != pair[1]]
        failures.append(f"metrics: {len(rows[0])} and {len(rows[1])} rows, first {unlike[:1]}")
    for row in runs[1].metrics():
        path = runs[1].samples / f"step_{row['step']:07d}.png"
        if row["kind"] == "samples" and row["images"] and not path.exists():
            failures.append(f"{path.name} is missing")
    left = [p.name for p in two.rglob("*") if p.name.startswith((".part-", ".lock"))]
    return failures + [f"left over: {name}" for name in left]


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Without what depends on the time."""
    return {k: v for k, v in row.items() if k not in ("images/s", "images")}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


@cache
def _reference(preset: str, seed: int, processes: int, sample_every: int) -> Path:
    """The run that nobody disturbs."""
    place = Path(_home().name, f"{preset}-{seed}-{processes}-{sample_every}")
    options = {"preset": preset, "seed": seed, "sample_every": sample_every, "checkpoint_every": 0}
    said = _train(place, place / "run", processes, None, resume=False, **options)
    if any(one["code"] for one in said):
        raise RuntimeError(f"the undisturbed run failed: {said}")
    return place / "run"


@cache
def _home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _train(
    place: Path, folder: Path, processes: int, moment: dict[str, Any] | None, **options: Any
) -> list[dict[str, Any]]:
    """Train with that many processes; what each says of itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    starts, options = list[Any](), {**options, "devices": str(processes)}
    for rank in range(processes):
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0"}
        environment = {**shared, "LOCAL_RANK": str(rank)} if processes > 1 else {}
        own = moment if moment and moment.get("rank") == rank else None
        starts.append((place / str(rank), folder, options, own, environment, 0.0))
    running = [_start(*start) for start in starts]
    if moment and "seconds" in moment:
        time.sleep(moment["seconds"])
        for process in running:
            process.kill()
    return _ended(running, starts)


def _start(*arguments: Any) -> Any:
    context = get_context("forkserver")
    context.set_forkserver_preload(["mintnet.training.start", "lightning_fabric", "PIL.Image"])
    arguments[0].mkdir(parents=True)
    process = context.Process(target=_child, args=(sys.path[0], *arguments))
    process.start()
    return process


def _ended(running: list[Any], starts: list[Any]) -> list[dict[str, Any]]:
    said, until = list[dict[str, Any]](), time.monotonic() + SECONDS
    for process, (place, *_) in zip(running, starts, strict=True):
        process.join(max(0.0, until - time.monotonic()))
        hangs = process.is_alive()
        if hangs:
            process.kill()
            process.join()
        words = place / "said.json"
        found = json.loads(words.read_text()) if words.exists() else {}
        saved = place / "saved"
        found["saved"] = int(saved.read_text().split()[-1]) if saved.exists() else 0
        said.append({**found, "code": "hangs" if hangs else process.exitcode})
    return said


def _child(
    home: str,
    place: Path,
    folder: Path,
    options: dict[str, Any],
    moment: dict[str, Any] | None,
    environment: dict[str, str],
    delay: float,
) -> None:
    """What a process does: train, kill itself where it is told to, and say how it went."""
    from mintnet.training import RunFolder, train
    from mintnet.training.step import Step

    torch.set_num_threads(1)
    os.environ.update(environment)
    sys.stderr = (place / "stderr").open("w")
    time.sleep(delay)
    write = RunFolder.write_checkpoint

    def noted(self: RunFolder, state: dict[str, Any]) -> None:
        write(self, state)
        with (place / "saved").open("a") as file:
            file.write(f"{state['step']}\n")

    RunFolder.write_checkpoint = noted  # type: ignore[method-assign]
    if moment is not None and "call" in moment:
        owners: dict[str, Any] = {"metrics": (RunFolder, "add_metrics"), "step": (Step, "__call__")}
        owner, name = owners.get(moment["call"], (os, moment["call"]))
        setattr(owner, name, _killing(getattr(owner, name), moment["number"], moment["after"]))
    said: dict[str, Any] = {}
    code = 0
    try:
        said = {"figures": train(run=folder, **RUN, **PRESETS[options["preset"]], **options)}
    except (ValueError, SystemExit) as error:  # the first process says why, the others exit
        code, said = 1, {"error": str(error)}
    except BaseException:
        code, said = 2, {"traceback": traceback.format_exc(limit=-4)}
    (place / "said.json").write_text(json.dumps(said, default=str))
    os._exit(code)


def _killing(function: Any, number: int, after: bool) -> Any:
    """The function, whose n-th call kills this process, before or after it does its work."""
    calls = [0]

    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = function(*arguments, **named)
        if calls[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return call
