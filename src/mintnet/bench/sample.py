"""Certified samples against Algorithm 1 as it was published, in one run."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.bench.invert import ITERATIONS, Note, layer_targets, tuned_step, tuning_samples
from mintnet.bench.machine import machine, seconds, synchronize
from mintnet.bench.memory import PeakMemory, free_memory
from mintnet.bench.textbook import textbook_evaluator
from mintnet.bench.work import copy_ceiling, evaluation_flops, evaluation_traffic, matrix_ceiling
from mintnet.bijections import MintLayer
from mintnet.models import Flow
from mintnet.precision import true_float32
from mintnet.solvers import relative_residual

COUNTS = (1, 16, 64, 256)
SIZES = (8, 16, 32, 64)
SIZES_COUNT = {"cuda": 64, "cpu": 4}
LEARNING = 3
"""Calls after the first in which solvers still try routes and record steps."""


class Limits(NamedTuple):
    """What a large matrix product and a large copy reached: TFLOP/s, and GB/s read and written."""

    tflops: float
    gigabytes: float


@torch.no_grad()
def bench_sample(
    flow: Flow,
    counts: Sequence[int] = (64,),
    seed: int = 0,
    repeats: int = 5,
    step: float | None = None,
    published: bool = True,
    sizes: Sequence[int] = (),
    note: Note = lambda line: None,
) -> dict[str, Any]:
    """Seconds for n certified samples: the first call and later ones, beside Algorithm 1.

    Ours is `Flow.sample`, which raises where it is not certified, with other noise in every
    call. Algorithm 1 takes 120 steps in each layer with Eq. 2 and Eq. 3 written out, the sums of
    Eq. 3 one after the other, and checks nothing; its residual is worked out here. TF32 is off
    throughout.

    Args:
        flow: a trained model, on its device.
        counts: how many samples.
        seed: of the noise.
        repeats: later calls, of which the median is taken.
        step: α of Algorithm 1; tuned on the published grid if not given.
        published: measure Algorithm 1 too.
        sizes: heights of images for which ours is measured too, see `resized`.
        note: told what happens.
    """
    if repeats < 1:
        raise ValueError(f"at least one call must be timed; got repeats {repeats}")
    if step is not None and not 0 < step < math.inf:
        raise ValueError(f"the step α of Algorithm 1 is a positive number; got {step}")
    for count in counts:
        if count < 1:
            raise ValueError(f"at least one sample can be drawn; got {count}")
    device = next(flow.parameters()).device
    with true_float32():
        facts = machine(device)
        limits = Limits(matrix_ceiling(device, torch.float32) / 1e12, copy_ceiling(device) / 1e9)
        if published and step is None:
            some = tuning_samples(device)
            note(f"tuning the step of Algorithm 1 on {some} samples")
            step = tuned_step(layer_targets(flow, flow.sample_latents(some, seed=seed)), note)
        rows = []
        for count in dict.fromkeys(counts):
            note(f"{count} samples")
            row = {"count": count, **_ours(flow, count, seed, repeats, limits)}
            if published:
                assert step is not None
                note(f"{count} samples, Algorithm 1 as published")
                row["published"] = _published(flow, count, seed, step, limits)
                if "seconds" in row["published"]:
                    row["speedup"] = row["published"]["seconds"] / row["seconds"]
            rows.append(row)
        over_size = []
        for size in sizes:
            count = SIZES_COUNT.get(device.type, 4)
            note(f"{count} samples, {size} × {size}")
            found = _ours(resized(flow, size), count, seed, repeats, limits)
            over_size.append({"size": size, "count": count, **found})
    return {
        "seed": seed,
        "tuned_step": step,
        "machine": facts,
        "matrix_tflops": limits.tflops,
        "copy_gb_per_second": limits.gigabytes,
        "size": flow.shape[-1],
        "rows": rows,
        "over_size": over_size,
    }


def resized(flow: Flow, size: int) -> Flow:
    """The same weights for images of another size; t, one number a pixel, is stretched."""
    config = replace(flow.net.config, shape=(flow.shape[0], size, size))
    other = flow.like(config).to(next(flow.parameters()))
    shapes = {name: tensor.shape for name, tensor in other.state_dict().items()}
    state = flow.state_dict()
    for name, tensor in state.items():
        if tensor.shape != shapes[name]:
            state[name] = F.interpolate(tensor[None], shapes[name][1:])[0]
    other.load_state_dict(state)
    return other.eval()


def published_inverse(flow: Flow, z: Tensor, step: float, iterations: int = ITERATIONS) -> Tensor:
    """Algorithm 1 through all layers, as printed but for α: no check, no stopping.

    x₀ = z / t, then x ← x − α (f(x) − z) / diag J(x). Shapes: those of `Flow.solve`.
    """
    for part in reversed(flow.net.chain.leaves()):
        if not isinstance(part, MintLayer):
            z = part.solve(z).value
            continue
        x, evaluate = part.start(z), textbook_evaluator(part, two_sums=True)
        for _ in range(iterations):
            y, slope = evaluate(x)
            x = x - step * (y - z) / slope
        z = x
    return z


def _ours(flow: Flow, count: int, seed: int, repeats: int, limits: Limits) -> dict[str, Any]:
    device = next(flow.parameters()).device
    peak, calls = PeakMemory(device), []
    flow = copy.deepcopy(flow)  # which leaves behind what solvers have learnt
    for number in range(1 + LEARNING + repeats):
        synchronize(device)
        begin = time.perf_counter()
        flow.sample(count, seed=seed + number)
        synchronize(device)
        calls.append(time.perf_counter() - begin)
    memory = peak.bytes()
    solution = flow.solve(flow.sample_latents(count, seed=seed))
    later = calls[1 + LEARNING :]
    leaves = reversed(flow.net.chain.leaves())
    times = {
        leaf: float(part.evaluations.double().mean())
        for leaf, part in zip(leaves, solution.parts, strict=True)
        if isinstance(leaf, MintLayer)
    }
    return {
        "first_seconds": calls[0],
        "learning_seconds": calls[1 : 1 + LEARNING],
        "seconds": median(later),
        "seconds_range": [min(later), max(later)],
        "evaluations": sum(times.values()),
        **_throughput(count, median(later), times, limits),
        "certified": int(solution.converged.sum()),
        "worst_residual": float(solution.residual.max()),
        "peak_memory_gib": None if memory is None else memory / 2**30,
    }


def _published(flow: Flow, count: int, seed: int, step: float, limits: Limits) -> dict[str, Any]:
    device = next(flow.parameters()).device
    z = flow.sample_latents(count, seed=seed)
    # Six hidden tensors are there at a time: both activations and slopes, and two of their sums.
    sizes = (math.prod(layer.event_shape) * layer.filters for layer in flow.net.layers())
    need = 6 * z.element_size() * count * max(sizes)
    free = free_memory(device)
    if free is not None and need > free:
        return {"failure": f"does not fit in memory: {need / 2**30:.0f} GiB"}
    peak = PeakMemory(device)
    found: list[Tensor] = []

    def run() -> None:
        found[:] = [published_inverse(flow, z, step)]
        flow.to_images(found[0].nan_to_num())

    try:
        published_inverse(flow, z, step, iterations=1)
        taken = seconds(run, device)
    except torch.OutOfMemoryError:
        return {"failure": "does not fit in memory"}
    x, memory = found[0], peak.bytes()
    times = {layer: float(ITERATIONS) for layer in flow.net.layers()}
    back = flow.net.transform(x)[0]
    residual = relative_residual(back - z, z.abs().flatten(1).amax(1))
    return {
        "seconds": taken,
        "evaluations": sum(times.values()),
        **_throughput(count, taken, times, limits),
        "worst_residual": float(residual.max()),
        "median_residual": float(residual.median()),
        "peak_memory_gib": None if memory is None else memory / 2**30,
    }


def _throughput(
    count: int, taken: float, times: dict[MintLayer, float], limits: Limits
) -> dict[str, float]:
    """Images a second, and evaluations without what masks clear, beside what the machine can."""
    tflops = count * sum(n * evaluation_flops(layer) for layer, n in times.items()) / taken / 1e12
    moved = count * sum(n * evaluation_traffic(layer) for layer, n in times.items()) / taken / 1e9
    return {
        "images_per_second": count / taken,
        "tflops_unmasked": tflops,
        "share_of_matrix_product": tflops / limits.tflops,
        "share_of_copy": moved / limits.gigabytes,
    }
