"""`mintnet bench invert`: solvers on the layers of a trained network, in one run on the same z."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median_low
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mintnet import Auto, Bijection, FixedPoint, Flow, Wavefront
from mintnet.analysis.origin import machine
from mintnet.cli.command import Command, Count, Model
from mintnet.cli.model import open_model
from mintnet.cli.output import console
from mintnet.precision import true_float32

from .sample import STEPS, algorithm_1
from .timing import Note, check_positive, plain_table, silent, timed

Way = Literal["algorithm-1", "newton", "wavefront", "auto"]
TITLES: dict[str, str] = {
    "algorithm-1": f"Algorithm 1, {STEPS} steps",
    "newton": "α = 1 with stopping",
    "wavefront": "wavefront",
    "auto": "auto",
}
PAPER: dict[tuple[int, ...], float] = {(1, 28, 28): 12.81, (3, 32, 32): 117.83}
"""Seconds of Algorithm 1 for 64 samples in the paper, on a TITAN Xp: MNIST and CIFAR-10."""
COLUMNS = ("seconds", "faster", "evaluations", "failed", "layer", "end to end")
LONGEST = 5.0
"""Seconds after which the timing of a layer is not repeated."""


@torch.no_grad()
def bench_invert(
    flow: Flow,
    count: int = 64,
    seed: int = 0,
    repeats: int = 3,
    step: float | None = None,
    ways: Sequence[Way] = get_args(Way),
    note: Note = silent,
) -> dict[str, Any]:
    """Seconds, evaluations and worst residuals of each solver on the layers of a flow.

    Every solver gets the same z in every layer: that of the verified inverse of z ~ N(0, I).
    The end-to-end residual is of a run of that solver alone through all layers. Everything is
    computed in true float32, and settings of TF32 are afterwards as they were.

    Args:
        flow: a trained model, on its device.
        count: samples.
        seed: of the noise that is inverted.
        repeats: timings of each layer, of which the median is taken.
        step: α of Algorithm 1; the paper's if not given.
        ways: the solvers to time.
        note: told what is being measured.
    """
    check_positive(count=count, repeats=repeats)
    published = algorithm_1(flow, step)  # refuses a bad step before anything takes time
    solvers = {
        "algorithm-1": published,
        "newton": FixedPoint(max_steps=STEPS),
        "wavefront": Wavefront(),
        "auto": Auto(),
    }
    device = next(flow.parameters()).device
    rows: dict[str, dict[str, Any]] = {}
    with true_float32():
        facts = machine(device)
        z = flow.sample_latents(count, seed=seed)
        note(f"the verified inverse of {count} samples")
        layers = layer_targets(flow, z)
        for way in dict.fromkeys(ways):
            note(TITLES[way])
            rows[way] = _measure(flow, layers, z, solvers[way], repeats)
    if "algorithm-1" in rows:
        for row in rows.values():
            row["speedup"] = rows["algorithm-1"]["seconds"] / row["seconds"]
    return {
        "count": count,
        "seed": seed,
        "step": published.step,
        "machine": facts,
        "layers": [type(layer).__name__ for layer, _ in layers],
        "ways": rows,
        "paper_seconds": PAPER.get(flow.shape) if count == 64 else None,
    }


def layer_targets(flow: Flow, z: Tensor) -> list[tuple[Bijection, Tensor]]:
    """Each layer with the z that it has to invert, in the order of inversion."""
    found = []
    for layer in reversed(flow.net.chain.leaves()):
        found.append((layer, z))
        z = layer.solve(z).require("The benchmark needs a verified inverse.")
    return found


def _measure(
    flow: Flow, layers: list[tuple[Bijection, Tensor]], z: Tensor, solver: Any, repeats: int
) -> dict[str, Any]:
    times, worst, evaluations, failures = [], 0.0, 0.0, 0
    for layer, target in layers:
        run = partial(layer.solve, target, solver)
        taken, solution = timed(run, target.device)  # may capture CUDA graphs: not counted
        repeated: list[float] = []
        while len(repeated) < repeats and taken + sum(repeated) < LONGEST:
            repeated.append(timed(run, target.device)[0])
        times.append(median_low(repeated or [taken]))
        worst = max(worst, float(solution.residual.nan_to_num(nan=float("inf")).max()))
        evaluations += float(solution.evaluations.double().mean())
        failures += int((~solution.converged).sum())
    whole = flow.net.solve(z, solver)
    return {
        "seconds": sum(times),
        "layer_seconds": times,
        "evaluations": evaluations,
        "worst_residual": worst,
        "not_verified": failures,
        "end_to_end_residual": float(whole.residual.max()),
        "end_to_end_verified": int(whole.converged.sum()),
    }


@dataclass(kw_only=True)
class Invert(Command):
    """Compare solvers on the layers of a trained network: time, evaluations, worst residuals."""

    model: Model
    """A run folder, a saved model folder, or the name of a shipped model."""

    count: Count = 64
    """How many samples."""

    seed: int = 0
    """Of the noise that is inverted."""

    repeats: int = 3
    """Timings of each layer, of which the median is taken."""

    step: float | None = None
    """α of Algorithm 1; the paper's for images of that shape if it is not given."""

    ways: tuple[Way, ...] = get_args(Way)
    """Which solvers to time."""

    device: str = "auto"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    def run(self) -> dict[str, Any]:
        out, model = console(), open_model(self.model, self.device)
        figures = bench_invert(
            model.flow,
            self.count,
            self.seed,
            self.repeats,
            self.step,
            self.ways,
            note=lambda line: out.print(line, style="dim"),
        )
        title = f"{model.label}, {self.count} samples, {figures['machine']['device']}"
        table = plain_table(title, "solver", *COLUMNS)
        for way, row in figures["ways"].items():
            table.add_row(
                TITLES[way],
                f"{row['seconds']:.3f}",
                f"{row['speedup']:.1f}×" if "speedup" in row else "–",
                f"{row['evaluations']:.0f}",
                str(row["not_verified"]),
                f"{row['worst_residual']:.1e}",
                f"{row['end_to_end_residual']:.1e}",
            )
        out.print(table)
        out.print(
            f"Algorithm 1 has α = 1/{1 / figures['step']:.3g}. Seconds are sums over layers, each "
            f"with the z of the verified inverse; failed: samples of all layers that are not "
            f"verified; layer, end to end: worst residuals, as shares of the largest |z|."
        )
        if figures["paper_seconds"]:
            out.print(f"The paper's Algorithm 1: {figures['paper_seconds']} s on a TITAN Xp")
        return figures
