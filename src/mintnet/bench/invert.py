"""Ways to invert a trained network, measured in one run on the same weights and the same z."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mintnet.bench.machine import machine, seconds, synchronize
from mintnet.bijections import MintLayer
from mintnet.calculus.masks import check_positive
from mintnet.kernels import plain_kernels
from mintnet.models import Flow
from mintnet.solvers import (
    Auto,
    FixedPoint,
    ResidualIteration,
    Solver,
    Wavefront,
    relative_residual,
)
from mintnet.solvers.fused import is_kernel_possible

STEPS = [1 / d for d in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)]
ITERATIONS = 120
RESIDUAL_ITERATIONS = 100
FEW = 16
LONGEST = 5.0
"""Seconds after which the timing of a layer is not repeated."""
PROBES = 4
PAIRS = 5
"""Of layers, on which the step of Algorithm 1 is tuned."""

PUBLISHED, RESIDUAL, SEQUENTIAL = (
    "algorithm 1, 120 steps",
    "i-ResNet fixed point, 100 steps",
    "one coordinate at a time",
)

PAPER: dict[tuple[int, ...], dict[str, float]] = {
    (1, 28, 28): {PUBLISHED: 12.81, RESIDUAL: 11.56, SEQUENTIAL: 63.61},
    (3, 32, 32): {PUBLISHED: 117.83, RESIDUAL: 99.41, SEQUENTIAL: 2889.64},
}
"""Seconds for 64 samples in the paper, on a TITAN Xp: MNIST and CIFAR-10."""

Note = Callable[[str], None]
Targets = list[tuple[MintLayer, Tensor]]


@torch.no_grad()
def bench_invert(
    flow: Flow,
    samples: int = 64,
    seed: int = 0,
    repeats: int = 5,
    step: float | None = None,
    time_limit: float | None = None,
    plain: bool = False,
    quick: bool = False,
    note: Note = lambda line: None,
) -> dict[str, Any]:
    """Time, evaluations and worst residuals of each way to invert the net of a flow.

    Every way gets the same z in every layer: the one that belongs to an exact inverse of
    z ~ N(0, I), found first with the wavefront. The end-to-end residual comes from a run of that
    way alone through all layers. TF32 is off throughout. The fixed point of i-ResNet is run on
    the same Mint layers, where it need not converge; its residual says whether it did.

    Args:
        flow: the trained model.
        samples: how many.
        seed: of the noise that is inverted.
        repeats: timings of each layer, of which the median is taken.
        step: α of Algorithm 1; tuned on the published grid if not given.
        time_limit: seconds that a way may take; one that would take longer is timed on one layer a
            stage for one sample and for four, continued along that line, and marked extrapolated.
        plain: without hand-written kernels; only the exact inverse may use them.
        quick: Algorithm 1 as published and auto alone.
        note: told what is being done.
    """
    check_positive(samples=samples, repeats=repeats)
    FixedPoint(step=1.0 if step is None else step)  # refuses a bad one before anything takes time
    if time_limit is not None and not time_limit >= 0:
        raise ValueError(f"the time limit is a number of seconds, at least 0; got {time_limit}")
    device = next(flow.parameters()).device
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    z = flow.sample_latents(samples, seed=seed)
    few = layer_targets(flow, z[:PROBES], Wavefront()) if time_limit is not None else []

    def too_long(solver: Solver) -> bool:
        limit = float("inf") if time_limit is None else time_limit
        return bool(few) and _extrapolated(few, solver, samples)["seconds"] > limit

    only_few = too_long(Wavefront())
    if not only_few:
        note(f"finding the exact inverse of {samples} samples")
    layers = few if only_few else layer_targets(flow, z, Wavefront())
    if step is None:
        step = tuned_step(layers, note, pairs=2 if only_few else PAIRS)
    ways: dict[str, Solver] = {
        PUBLISHED: FixedPoint(step=step, max_steps=ITERATIONS, tolerance=0, capture=False),
        "α = 1 with stopping": FixedPoint(max_steps=ITERATIONS),
        "wavefront": Wavefront(),
        "auto": Auto(),
        RESIDUAL: ResidualIteration(RESIDUAL_ITERATIONS, tolerance=0),
    }
    if device.type == "cuda":  # the published way, with the launches that it spends saved
        ways[f"{PUBLISHED}, CUDA graph"] = FixedPoint(step=step, max_steps=ITERATIONS, tolerance=0)
    if quick:
        ways = {name: ways[name] for name in (PUBLISHED, "auto")}
    rows: dict[str, dict[str, Any]] = {}
    times: dict[str, list[float]] = {}
    certified: dict[str, list[bool]] = {}
    for name, solver in ways.items():
        with plain_kernels() if plain else nullcontext():
            if only_few or too_long(solver):
                note(f"{name}, on few samples and one layer a stage")
                rows[name] = _extrapolated(few, solver, samples)
            else:
                note(name)
                measured = _measure(flow, layers, z, solver, repeats)
                rows[name], times[name], certified[name] = measured
    if not quick:
        note(SEQUENTIAL)
        rows[SEQUENTIAL] = _one_by_one(layers, device, samples, time_limit)
    for row in rows.values():
        row["speedup"] = rows[PUBLISHED]["seconds"] / row["seconds"]
    return {
        "samples": samples,
        "seed": seed,
        "tuned_step": step,
        "hand_written_kernels": not plain and is_kernel_possible(z),
        "machine": machine(device),
        "ways": rows,
        "paper_seconds": PAPER.get(flow.shape, {}),
        "auto_over_faster_of_two": _over_the_faster(times, certified),
        "layers": [
            {"name": layer.name, **{way: taken[i] for way, taken in times.items()}}
            for i, (layer, _) in enumerate(layers)
        ],
    }


def _over_the_faster(
    times: dict[str, list[float]], certified: dict[str, list[bool]]
) -> float | None:
    """The time of auto over the sum of the faster solver of each layer; None if not measured."""
    two = ("α = 1 with stopping", "wavefront")
    if not {*two, "auto"} <= times.keys():
        return None
    faster = (
        min(times[way][i] for way in two if certified[way][i]) for i in range(len(times["auto"]))
    )
    return sum(times["auto"]) / sum(faster)


def _extrapolated(few: Targets, solver: Solver, samples: int) -> dict[str, Any]:
    """A way on one layer of each stage, the middle one, which counts for all of its shape.

    It is timed for one sample and for all of the few, and the time continued along that line.
    """
    total, evaluations, worst = 0.0, 0.0, 0.0
    for shape in dict.fromkeys(layer.event_shape for layer, _ in few):
        stage = [(layer, z) for layer, z in few if layer.event_shape == shape]
        layer, z = stage[len(stage) // 2]
        taken = []
        for part in (z[:1], z):
            for _ in range(3 if isinstance(solver, Auto) else 1):  # Auto learns first
                solution = layer.solve(part, solver)
            taken.append(seconds(partial(layer.solve, part, solver), z.device))
        each = max(0.0, (taken[1] - taken[0]) / max(1, len(z) - 1))
        total += (taken[0] + each * (samples - 1)) * len(stage)
        evaluations += float(solution.evaluations.double().mean()) * len(stage)
        worst = max(worst, float(solution.residual.max()))
    return {
        "seconds": total,
        "evaluations": evaluations,
        "worst_residual": worst,
        "not_certified": None,
        "end_to_end_residual": None,
        "end_to_end_samples": 0,
        "extrapolated": True,
    }


def layer_targets(flow: Flow, z: Tensor, solver: Solver | None = None) -> Targets:
    """Each Mint layer with the z that it has to invert, in the order of inversion."""
    found = []
    for part in reversed(flow.net.chain.leaves()):
        if isinstance(part, MintLayer):
            found.append((part, z))
        z = part.solve(z, solver).require("The benchmark needs an exact inverse.")
    return found


def tuning_samples(device: torch.device) -> int:
    """Samples on which the step of Algorithm 1 is tuned."""
    return 16 if device.type == "cuda" else 4


def tuned_step(layers: Targets, note: Note, pairs: int = PAIRS) -> float:
    """The step of the published grid that leaves the lowest worst residual after 120 steps.

    Tried on a few samples of some pairs of layers that follow each other: the two orderings may
    want different steps.

    Args:
        layers: all Mint layers of a net, with the z that each has to invert.
        note: told which it is.
        pairs: of layers, spread evenly over the net.
    """
    count = min(pairs, len(layers) // 2) or 1
    begin = [2 * round(k * (len(layers) // 2 - 1) / max(count - 1, 1)) for k in range(count)]
    some = [layer for first in begin for layer in layers[first : first + 2]]
    worst = {}
    for step in STEPS:
        solver = FixedPoint(step=step, max_steps=ITERATIONS, tolerance=0)
        found = [layer.solve(z[: tuning_samples(z.device)], solver).residual for layer, z in some]
        worst[step] = float(torch.cat(found).nan_to_num(nan=math.inf).max())
    best = min(worst, key=worst.__getitem__)
    note(f"tuned step of Algorithm 1: 1/{1 / best:g}")
    return best


def _measure(
    flow: Flow, layers: Targets, z: Tensor, solver: Solver, repeats: int
) -> tuple[dict[str, Any], list[float], list[bool]]:
    """The summary of one way, its seconds for each layer, and which layers it certified."""
    published = isinstance(solver, FixedPoint | ResidualIteration) and solver.tolerance == 0
    times, certified, residuals, evaluations, failures = [], [], [], 0.0, 0
    for layer, target in layers:
        run, device = partial(layer.solve, target, solver), target.device
        # Auto learns first; recorded steps are recorded at the first call.
        for _ in range(_warm_up(solver, target)):
            begin = time.perf_counter()
            solution = run()
            synchronize(device)
            warm = time.perf_counter() - begin
        if published:  # which takes long: the better of two calls
            times.append(min(warm, seconds(run, device)))
        else:
            times.append(seconds(run, device, repeats, LONGEST))
        certified.append(bool(solution.converged.all()))
        residuals.append(float(solution.residual.max()))
        evaluations += float(solution.evaluations.double().mean())
        failures += int((~solution.converged).sum())
    few = z[:4] if published else z
    end_to_end = float(flow.net.solve(few, solver).residual.max())
    row = {
        "seconds": sum(times),
        "evaluations": evaluations,
        "worst_residual": max(residuals),
        "not_certified": failures,
        "end_to_end_residual": end_to_end,
        "end_to_end_samples": len(few),
        "extrapolated": False,
    }
    return row, times, certified


def _warm_up(solver: Solver, z: Tensor) -> int:
    if isinstance(solver, Auto):
        return 4
    return 2 if z.is_cuda and isinstance(solver, FixedPoint) and solver.capture else 1


def _one_by_one(
    layers: Targets, device: torch.device, samples: int, time_limit: float | None
) -> dict[str, Any]:
    """One Newton step for each coordinate in turn.

    The time is that of the first few coordinates of one layer a stage, for all samples, times
    their number; the residual that of one sample, solved to the end if there is time.
    """
    total, evaluations, worst = 0.0, 0, 0.0
    seen: dict[tuple[int, ...], float] = {}
    for layer, z in layers:
        order = layer.ordering.rank(layer.event_shape).flatten().argsort().tolist()
        if layer.event_shape not in seen:
            few = order[:FEW]
            taken = seconds(partial(_newton_in_turn, layer, z, few), device) * len(order) / len(few)
            seen[layer.event_shape] = taken * samples / len(z)
            if time_limit is None or taken / len(z) <= time_limit:
                x = _newton_in_turn(layer, z[:1], order)
                scale = z[:1].abs().flatten(1).amax(1)
                residual = relative_residual(layer.evaluate(x)[0] - z[:1], scale)
                worst = max(worst, float(residual.max()))
            else:
                worst = float("nan")
        total += seen[layer.event_shape]
        evaluations += len(order)
    return {
        "seconds": total,
        "evaluations": float(evaluations),
        "worst_residual": worst,
        "not_certified": None,
        "end_to_end_residual": None,
        "end_to_end_samples": 0,
        "extrapolated": True,
    }


def _newton_in_turn(layer: MintLayer, z: Tensor, coordinates: list[int]) -> Tensor:
    x, evaluate = layer.start(z).flatten(1), layer.evaluator()
    for i in coordinates:
        y, slope = evaluate(x.reshape(z.shape))
        x[:, i] -= ((y - z) / slope).flatten(1)[:, i]
    return x.reshape(z.shape)
