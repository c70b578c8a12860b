"""`mintnet bench sample`: seconds of each call of sampling, beside 120 steps of Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from mintnet import FixedPoint, Flow
from mintnet.analysis.origin import machine
from mintnet.cli.command import Command, Count, Model
from mintnet.cli.model import open_model
from mintnet.cli.output import console
from mintnet.precision import true_float32

from .timing import Note, check_positive, forget_peak, peak_gib, silent, timed

STEPS = 120
PAPER_STEPS = {(1, 28, 28): 1 / 3.5, (3, 32, 32): 1 / 1.1}
"""α of Algorithm 1 in the paper, by the shape of images: MNIST and CIFAR-10."""
CHUNK = 500
"""Samples that are solved at a time to measure residuals."""


def algorithm_1(flow: Flow, step: float | None) -> FixedPoint:
    """Algorithm 1 as published: 120 steps without stopping; α of the paper if not given."""
    chosen = PAPER_STEPS.get(flow.shape, 2 / 3) if step is None else step
    return FixedPoint(step=chosen, max_steps=STEPS, tolerance=0)


@torch.no_grad()
def bench_sample(
    flow: Flow,
    count: int = 64,
    seed: int = 0,
    calls: int = 6,
    compare: bool = False,
    step: float | None = None,
    note: Note = silent,
) -> dict[str, Any]:
    """Seconds of each call of ``flow.sample(count, seed=seed)``, and whether all gave equal bits.

    The first call includes what is done once, such as the capture of CUDA graphs. Everything,
    residual checks and Algorithm 1 included, is computed in true float32.

    Args:
        flow: a trained model, on its device.
        count: samples of a call.
        seed: of the noise, the same in every call.
        calls: how many.
        compare: also time 120 steps of Algorithm 1 in each layer, on the same noise.
        step: α of Algorithm 1; the paper's if not given.
        note: told what is being measured.
    """
    check_positive(count=count, calls=calls)
    published = algorithm_1(flow, step)  # refuses a bad step before anything takes time
    device = next(flow.parameters()).device
    seconds, identical, first = [], True, None
    with true_float32():
        facts = machine(device)
        forget_peak(device)
        for number in range(calls):
            taken, images = timed(lambda: flow.sample(count, seed=seed), device)
            note(f"call {number + 1}: {taken:.3f} s")
            seconds.append(taken)
            first = images if first is None else first
            identical = identical and torch.equal(images, first)
        memory = peak_gib(device)
        note("residuals of the same samples")
        z = flow.sample_latents(count, seed=seed)
        solved = [flow.solve(part) for part in z.split(CHUNK)]
        later = seconds[1:] or seconds
        figures: dict[str, Any] = {
            "count": count,
            "seed": seed,
            "machine": facts,
            "calls": seconds,
            "first_seconds": seconds[0],
            "second_seconds": seconds[1] if calls > 1 else None,
            "seconds": median(later),
            "best_seconds": min(later),
            "slowest_over_fastest": max(seconds) / min(seconds),
            "later_slowest_over_fastest": max(later) / min(later),
            "identical": identical,
            "images_per_second": count / median(later),
            "evaluations": sum(float(part.evaluations.double().mean()) for part in solved[0].parts),
            "verified": sum(int(part.converged.sum()) for part in solved),
            "worst_residual": max(float(part.residual.max()) for part in solved),
            "peak_memory_gib": memory,
        }
        if compare:
            note(f"{STEPS} steps of Algorithm 1 in each layer")
            for _ in range(2 if device.type == "cuda" else 1):  # the first call captures graphs
                taken, other = timed(lambda: flow.solve(z, published), device)
            figures["algorithm_1"] = {
                "step": published.step,
                "steps": STEPS,
                "seconds": taken,
                "verified": int(other.converged.sum()),
                "worst_residual": float(other.residual.max()),
                "median_residual": float(other.residual.median()),
            }
            figures["speedup"] = taken / median(later)
    return figures


@dataclass(kw_only=True)
class Sample(Command):
    """Time calls of sampling: the first, the second and later ones, and whether bits are equal."""

    model: Model
    """A run folder, a saved model folder, or the name of a shipped model."""

    count: Count = 64
    """How many samples a call draws."""

    seed: int = 0
    """Of the noise, the same in every call."""

    calls: int = 6
    """How many calls are timed."""

    compare: bool = False
    """Also time 120 steps of Algorithm 1 in each layer, on the same noise."""

    step: float | None = None
    """α of Algorithm 1; the paper's for images of that shape if it is not given."""

    device: str = "auto"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    def run(self) -> dict[str, Any]:
        out, model = console(), open_model(self.model, self.device)
        figures = bench_sample(
            model.flow,
            self.count,
            self.seed,
            self.calls,
            self.compare,
            self.step,
            note=lambda line: out.print(line, style="dim"),
        )
        print_sample(out.print, model.label, figures)
        return figures


def print_sample(say: Any, label: str, figures: dict[str, Any]) -> None:
    """Say in a few lines what was measured."""
    say(f"{label}, {figures['count']} samples, true float32, {figures['machine']['device']}")
    first, *later = figures["calls"]
    say(f"first call {first:.3f} s (captures and other work that is done once included)")
    if later:
        words = ", ".join(f"{taken:.3f}" for taken in later)
        say(f"later calls {words} s: best {min(later):.3f} s, median {figures['seconds']:.3f} s")
        say(
            f"slowest over fastest: {figures['slowest_over_fastest']:.2f} of all calls, "
            f"{figures['later_slowest_over_fastest']:.2f} of later ones; "
            + ("all calls gave the same bits" if figures["identical"] else "the bits DIFFER")
        )
    memory = figures["peak_memory_gib"]
    say(
        f"{figures['verified']} of {figures['count']} verified, worst end-to-end residual "
        f"{figures['worst_residual']:.1e}; {figures['evaluations']:.0f} evaluations of layers, "
        f"{figures['images_per_second']:.3g} images/s"
        + ("" if memory is None else f", {memory:.2f} GiB at most")
    )
    if other := figures.get("algorithm_1"):
        say(
            f"Algorithm 1, {other['steps']} steps of α = 1/{1 / other['step']:.3g} in each layer: "
            f"{other['seconds']:.3f} s, {figures['speedup']:.1f} times as long; "
            f"{other['verified']} of {figures['count']} verified, worst residual "
            f"{other['worst_residual']:.1e}"
        )
