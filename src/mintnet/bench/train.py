"""A whole step of training, ours against textbook versions, in one run."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from mintnet.bench.invert import Note
from mintnet.bench.machine import machine, timings
from mintnet.bench.memory import PeakMemory, free_memory
from mintnet.bench.steps import TEXTBOOK, Step, Way, make_step, ways_for
from mintnet.bench.work import copy_ceiling, least_traffic, matrix_ceiling, unmasked_flops
from mintnet.models import Flow
from mintnet.training.devices import cpu_threads, float32_math
from mintnet.training.recipe import Recipe
from mintnet.training.recorded import chosen_by_measuring

AUTHORS_BATCH = 32
WARM_UP = 2
SWEEP_BATCHES = {"cuda": (8, 32, 128, 512), "cpu": (1, 2, 4, 8, 16)}
SWEEP_SIZES = (8, 16, 32, 64)
SIZES_BATCH = {"cuda": 64, "cpu": 2}


@dataclass(frozen=True)
class Setting:
    """What all rows of a run have in common.

    Attributes:
        device: where steps run.
        recipe: eps and clipping.
        repeats: steps that are timed.
        time_limit: seconds after which no further step of a row is begun.
        note: told what happens.
    """

    device: torch.device
    recipe: Recipe
    repeats: int
    time_limit: float
    note: Note


def our_batch(flow: Flow, device: torch.device) -> int:
    """The batch size at which ours is measured besides the authors'."""
    if device.type == "cuda":
        return 512
    return 8 if flow.dimensions <= 1024 else 2


def bench_train(
    flow: Flow,
    device: torch.device | str = "cpu",
    batches: Sequence[int] | None = None,
    recipe: Recipe | None = None,
    repeats: int = 10,
    time_limit: float = 60.0,
    compile: bool = True,
    sweep: bool = False,
    ways: Sequence[Way] | None = None,
    note: Note = lambda line: None,
) -> dict[str, Any]:
    """Time, memory and throughput of a step of training in each way and at each batch size.

    Images are random, since time does not depend on them, and so are the weights: fresh ones
    moved away from 0. On a CPU the ways take turns; on a GPU each has the device to itself.

    Args:
        flow: the model; it is not changed.
        device: where.
        batches: images in a step; the authors' 32 and our own choice if not given.
        recipe: eps and clipping are taken from it.
        repeats: steps that are timed, after two to warm up.
        time_limit: seconds of a row after which no further step is begun.
        compile: on a CPU, try torch.compile too, which takes minutes.
        sweep: also over batch sizes and sizes of images.
        ways: what to compare, instead of all that the device has.
        note: told what happens.
    """
    device = torch.device(device)
    sizes = list(dict.fromkeys(batches or (AUTHORS_BATCH, our_batch(flow, device))))
    if min(sizes) < 1:
        raise ValueError(f"a batch has at least one image; got {min(sizes)}")
    if repeats < 1:
        raise ValueError(f"at least one step must be timed; got repeats {repeats}")
    if not time_limit >= 0:  # nan neither
        raise ValueError(f"the time limit is a number of seconds from 0 on; got {time_limit}")
    setting = Setting(device, recipe or Recipe(), repeats, time_limit, note)
    ways = list(ways or ways_for(flow, device, compile))
    with cpu_threads(None, flow.dimensions):  # as in training
        return _compared(moved_from_start(flow), ways, sizes, sweep, setting)


def _compared(
    flow: Flow, ways: Sequence[Way], sizes: Sequence[int], sweep: bool, setting: Setting
) -> dict[str, Any]:
    """Rows for each batch size, speed-ups over the better textbook version, and the sweep."""
    device = setting.device
    limits = _ceilings(ways, setting)
    rows: list[dict[str, Any]] = []
    for batch in sizes:
        groups = [[way] for way in ways] if device.type == "cuda" else [ways]
        for group in groups:
            rows += _measure(flow, group, batch, limits, setting)
    done = [row for row in rows if "failure" not in row]
    textbook = [row for row in done if row["kind"] in TEXTBOOK]
    for row in done if textbook else ():
        same = [other for other in textbook if other["batch"] == row["batch"]]
        row["speedup"] = row["images_per_second"] / max(
            other["images_per_second"] for other in same or textbook
        )
    figures: dict[str, Any] = {
        "net": flow.net.config.to_dict(),
        "gflop_an_image": unmasked_flops(flow.net) / 1e9,
        "machine": machine(device),
        "ceilings": limits,
        "rows": rows,
    }
    if sweep:
        best = next((way for way in ways if way.kind == "recorded"), Way("ours", "plain"))
        figures |= _sweep(flow, best, limits, setting)
    return figures


@torch.no_grad()
def moved_from_start(flow: Flow) -> Flow:
    """A copy of the flow with all kernels moved away from 0, the same for the same flow."""
    moved = flow.like(flow.net.config)
    moved.load_state_dict(flow.state_dict())
    generator = torch.Generator().manual_seed(0)
    for name, weight in moved.named_parameters():
        if "weight" in name:
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(noise, alpha=0.5 / math.sqrt(weight[0].numel()))
    return moved


def _ceilings(ways: Sequence[Way], setting: Setting) -> dict[str, Any]:
    """Operations a second of each precision, and bytes a second of a copy."""
    setting.note("measuring a large matrix product and a large copy")
    products = {}
    for way in ways:
        if way.precision not in products:
            with float32_math(tf32=way.precision == "tf32"):
                products[way.precision] = matrix_ceiling(setting.device, way.dtype) / 1e12
    return {"matrix_tflops": products, "copy_gb_per_second": copy_ceiling(setting.device) / 1e9}


def _measure(
    flow: Flow, ways: Sequence[Way], batch: int, limits: dict[str, Any], setting: Setting
) -> list[dict[str, Any]]:
    """A row for each way, timed in turns."""
    rows: dict[str, dict[str, Any]] = {}
    running: dict[str, Step] = {}
    for way in ways:
        slow = ", which is compiled first" if way.kind == "compiled" else ""
        setting.note(f"{way.name}, batch {batch}, {flow.shape[1]} × {flow.shape[2]}{slow}")
        row: dict[str, Any] = {"way": way.name, "kind": way.kind, "batch": batch}
        rows[way.name] = row | {"precision": way.precision}
        failure = _does_not_fit(flow, way, batch, setting)
        if failure is None:
            started = _started(flow, way, batch, setting, rows[way.name])
            failure, step = (started, None) if isinstance(started, str) else (None, started)
            if step is not None:
                running[way.name] = step
        if failure is not None:
            rows[way.name]["failure"] = failure
            setting.note(f"{way.name}, batch {batch}: {failure}")
    taken = timings(running, setting.device, setting.repeats, setting.time_limit * len(running))
    for way in ways:
        if way.name in running:
            rows[way.name] |= _summary(flow, way, batch, taken[way.name], limits)
    running.clear()
    _forget(setting.device)
    return list(rows.values())


def _started(flow: Flow, way: Way, batch: int, setting: Setting, row: dict[str, Any]) -> Step | str:
    """The step, warmed up and with its memory measured; or why there is none."""
    device = setting.device
    begin, peak = time.perf_counter(), PeakMemory(device)
    images = _random_images(flow, batch).to(device)
    try:
        with _arithmetic(way):
            inner = make_step(way, flow, images, setting.recipe)
            loss = float(inner())
            row["first_step_seconds"] = time.perf_counter() - begin
            for _ in range(WARM_UP - 1):
                inner()
            if device.type == "cuda" and way.kind != "recorded":
                # Libraries have tried their algorithms; a graph holds what its recording took.
                peak = PeakMemory(device, peak.before)
            inner()
    except torch.OutOfMemoryError:
        return _too_large(None, device)
    except Exception as error:
        if "can't allocate memory" in str(error):  # on a CPU it has no name of its own
            return _too_large(None, device)
        if way.kind != "compiled":
            raise
        return f"could not be compiled: {' '.join(str(error).split())[:120]}"
    if not math.isfinite(loss):
        raise ValueError(f"{way.name}: the loss of random images is {loss}")
    row |= {"loss": loss, "peak_memory_gib": _gib(peak.bytes())}
    if device.type == "cuda":  # what stays taken from step to step, a graph's memory included
        torch.cuda.empty_cache()
        row["held_memory_gib"] = _gib(torch.cuda.memory_reserved(device))

    def step() -> Tensor:
        with _arithmetic(way):
            return inner()

    return step


def _does_not_fit(flow: Flow, way: Way, batch: int, setting: Setting) -> str | None:
    """Where memory is not refused but the process ended, its need is worked out beforehand."""
    free = free_memory(setting.device)
    if setting.device.type == "cuda" or free is None or batch == 1 or way.kind == "compiled":
        return None

    def needed(images: int) -> int:
        peak = PeakMemory(setting.device)
        step = make_step(way, flow, _random_images(flow, images), setting.recipe)
        step()
        step()  # with gradients and moments there from the start
        return peak.bytes() or 0

    need = one = needed(1)
    if batch * one > free:
        need = one + (batch - 1) * max(0, needed(2) - one)
    _forget(setting.device)
    return _too_large(need, setting.device) if need > free else None


def _too_large(need: int | None, device: torch.device) -> str:
    free = free_memory(device)
    about = "" if need is None else f": about {need / 2**30:.0f} GiB"
    have = "" if need is None or free is None else f", and {free / 2**30:.0f} are free"
    return f"does not fit in memory{about}{have}"


def _summary(
    flow: Flow, way: Way, batch: int, taken: list[float], limits: dict[str, Any]
) -> dict[str, Any]:
    middle = median(taken)
    low, _, high = quantiles(taken, method="inclusive") if len(taken) > 1 else taken * 3
    flops = batch * unmasked_flops(flow.net) / middle
    traffic = least_traffic(flow.net, batch, way.dtype.itemsize) / middle
    return {
        "steps": len(taken),
        "milliseconds": 1e3 * middle,
        "milliseconds_quartiles": [1e3 * low, 1e3 * high],
        "images_per_second": batch / middle,
        "tflops_unmasked": flops / 1e12,
        "share_of_matrix_product": flops / 1e12 / limits["matrix_tflops"][way.precision],
        "share_of_copy": traffic / 1e9 / limits["copy_gb_per_second"],
    }


def _sweep(flow: Flow, way: Way, limits: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Ours over batch sizes, and over sizes of images at one batch size."""
    kind = "cuda" if setting.device.type == "cuda" else "cpu"
    if way.precision not in limits["matrix_tflops"]:
        limits["matrix_tflops"] |= _ceilings([way], setting)["matrix_tflops"]

    def rows(flow: Flow, batch: int) -> dict[str, Any]:
        (row,) = _measure(flow, [way], batch, limits, setting)
        return {"size": flow.shape[1], **row}

    over_size = []
    for size in SWEEP_SIZES:
        config = replace(flow.net.config, shape=(flow.shape[0], size, size))
        over_size.append(rows(moved_from_start(flow.like(config)), SIZES_BATCH[kind]))
    over_batch = [rows(flow, batch) for batch in SWEEP_BATCHES[kind]]
    return {"sweep_way": way.name, "over_batch": over_batch, "over_size": over_size}


def _random_images(flow: Flow, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (batch, *flow.shape)
    return torch.randint(0, flow.levels, shape, dtype=torch.uint8, generator=generator)


@contextmanager
def _arithmetic(way: Way) -> Iterator[None]:
    """The precision of products; convolutions are chosen by measuring them, as in training."""
    with chosen_by_measuring(), float32_math(tf32=way.precision in ("tf32", "bf16")):
        yield


def _gib(size: int | None) -> float | None:
    return None if size is None else size / 2**30


def _forget(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()  # else they count as what the next row holds
        torch.cuda.empty_cache()
