"""Ways to invert a trained network, measured in one run on the same weights and the same z."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mintnet.bench.machine import machine, seconds
from mintnet.bijections import MintLayer
from mintnet.models import Flow
from mintnet.solvers import Auto, FixedPoint, Solver, Wavefront, relative_residual

STEPS = [1 / d for d in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)]
ITERATIONS = 120
PUBLISHED = f"algorithm 1, {ITERATIONS} steps"
FEW = 16
LONGEST = 1.0
"""Seconds after which the timing of a layer is not repeated."""

Note = Callable[[str], None]


@torch.no_grad()
def bench_invert(
    flow: Flow,
    samples: int = 64,
    seed: int = 0,
    repeats: int = 5,
    step: float | None = None,
    note: Note = lambda line: None,
) -> dict[str, Any]:
    """Time, evaluations and worst residuals of each way to invert the net of a flow.

    Every way gets the same z in every layer: the one that belongs to an exact inverse of
    z ~ N(0, I), found first with the wavefront. The end-to-end residual comes from a run of that
    way alone through all layers. TF32 is off throughout.
    """
    device = next(flow.parameters()).device
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    z = flow.sample_latents(samples, seed=seed)
    note(f"finding the exact inverse of {samples} samples")
    layers = layer_targets(flow, z, Wavefront())
    step = step or tuned_step(layers, note)
    ways: dict[str, Solver] = {
        PUBLISHED: FixedPoint(step=step, max_steps=ITERATIONS, tolerance=0, capture=False),
        "α = 1 with stopping": FixedPoint(max_steps=ITERATIONS),
        "wavefront": Wavefront(),
        "auto": Auto(),
    }
    if device.type == "cuda":  # the published way, with the launches that it spends saved
        ways[f"{PUBLISHED}, CUDA graph"] = FixedPoint(step=step, max_steps=ITERATIONS, tolerance=0)
    rows: dict[str, dict[str, Any]] = {}
    times: dict[str, list[float]] = {}
    certified: dict[str, list[bool]] = {}
    for name, solver in ways.items():
        note(name)
        rows[name], times[name], certified[name] = _measure(flow, layers, z, solver, repeats)
    note("one coordinate at a time")
    rows["one coordinate at a time"] = _one_by_one(layers, device)
    two = ("α = 1 with stopping", "wavefront")
    best = [
        min((times[way][i] for way in two if certified[way][i]), default=times["auto"][i])
        for i in range(len(layers))
    ]
    published = rows[PUBLISHED]["seconds"]
    for row in rows.values():
        row["speedup"] = published / row["seconds"]
    return {
        "samples": samples,
        "seed": seed,
        "tuned_step": step,
        "machine": machine(device),
        "ways": rows,
        "auto_over_faster_of_two": rows["auto"]["seconds"] / sum(best),
        "layers": [
            {"name": layer.name, **{way: taken[i] for way, taken in times.items()}}
            for i, (layer, _) in enumerate(layers)
        ],
    }


def layer_targets(
    flow: Flow, z: Tensor, solver: Solver | None = None
) -> list[tuple[MintLayer, Tensor]]:
    """Each Mint layer with the z that it has to invert, in the order of inversion."""
    found = []
    for part in reversed(flow.net.chain.leaves()):
        if isinstance(part, MintLayer):
            found.append((part, z))
        z = part.solve(z, solver).require("The benchmark needs an exact inverse.")
    return found


def tuned_step(layers: list[tuple[MintLayer, Tensor]], note: Note) -> float:
    """The step of the published grid that leaves the lowest worst residual after 120 steps.

    Tried on two samples and on one layer in four.
    """
    worst = {}
    for step in STEPS:
        solver = FixedPoint(step=step, max_steps=ITERATIONS, tolerance=0)
        residuals = [layer.solve(z[:2], solver).residual for layer, z in layers[::4]]
        worst[step] = float(torch.cat(residuals).log().nan_to_num(posinf=50.0).mean())
    best = min(worst, key=worst.__getitem__)
    note(f"tuned step of Algorithm 1: 1/{1 / best:g}")
    return best


def _measure(
    flow: Flow, layers: list[tuple[MintLayer, Tensor]], z: Tensor, solver: Solver, repeats: int
) -> tuple[dict[str, Any], list[float], list[bool]]:
    """The summary of one way, its seconds for each layer, and which layers it certified."""
    published = isinstance(solver, FixedPoint) and solver.tolerance == 0
    times, certified, residuals, evaluations, failures = [], [], [], 0.0, 0
    for layer, target in layers:
        # Auto learns first; recorded steps are recorded at the second call.
        for _ in range(_warm_up(solver, target)):
            solution = layer.solve(target, solver)
        run = partial(layer.solve, target, solver)
        times.append(seconds(run, target.device, 1 if published else repeats, LONGEST))
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


def _one_by_one(layers: list[tuple[MintLayer, Tensor]], device: torch.device) -> dict[str, Any]:
    """One Newton step for each coordinate in turn.

    The time is that of the first few coordinates of one layer a stage, for all samples, times
    their number; the residual that of one sample, solved to the end.
    """
    total, evaluations, worst = 0.0, 0, 0.0
    seen: dict[tuple[int, ...], float] = {}
    for layer, z in layers:
        order = layer.ordering.rank(layer.event_shape).flatten().argsort().tolist()
        if layer.event_shape not in seen:
            few = order[:FEW]
            taken = seconds(partial(_newton_in_turn, layer, z, few), device)
            seen[layer.event_shape] = taken * len(order) / len(few)
            x = _newton_in_turn(layer, z[:1], order)
            scale = z[:1].abs().flatten(1).amax(1)
            residual = relative_residual(layer.evaluate(x)[0] - z[:1], scale)
            worst = max(worst, float(residual.max()))
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
