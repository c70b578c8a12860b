"""Everything that a report shows of a model, computed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mintnet.data import ImageData
from mintnet.figures.curves import read_metrics
from mintnet.figures.grid import image_grid
from mintnet.figures.interpolation import interpolate
from mintnet.figures.invertibility import ErrorCurve, error_curve
from mintnet.figures.layers import layer_rows, solve_in_batches
from mintnet.figures.reconstruction import Reconstruction, paired_grid, reconstruct
from mintnet.figures.report import Contents, Headline, Panel
from mintnet.models import Flow
from mintnet.solvers import InversionError, Solution, Solver

STEPS = (1.0, 1 / 3.5)
"""α of the curves: the natural one, and the paper's for MNIST."""

ITERATIONS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 120)

LEAST = 4
"""Images below which a measurement says little."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Amounts:
    """How much a report looks at.

    Attributes:
        samples: images to draw.
        images: test images to reconstruct.
        likelihood: test images for the bits per dimension, at most.
        seconds: time for the curves of Algorithm 1, about; fewer images and points are taken
            where all need more. 0: no limit.
    """

    samples: int = 64
    images: int = 32
    likelihood: int = 1024
    seconds: float = 60.0


def gather(
    flow: Flow,
    data: ImageData,
    title: str,
    run: Path | None = None,
    amounts: Amounts | None = None,
    solver: Solver | None = None,
    seed: int = 0,
    tell: Tell = lambda _: None,
) -> Contents:
    """Measure a model on its test images and draw from it.

    Args:
        flow: the model.
        data: the test images.
        title: of the page.
        run: the run folder, whose metrics and grids of samples are shown too.
        amounts: how much to look at.
        solver: for inverses; the default if not given.
        seed: of samples and of dequantization noise.
        tell: hears what is being done.
    """
    amounts = amounts or Amounts()
    generator = torch.Generator().manual_seed(seed)
    contents = Contents(title, metrics=read_metrics(run) if run else [])
    contents.progress = _progress(run) if run else []
    tell("bits per dimension")
    bpd, error, count = bits_per_dim(flow, data.images, amounts.likelihood, seed)
    contents.bits_per_dim = bpd
    tell("samples")
    z = flow.sample_latents(amounts.samples, seed=seed)
    drawn = solve_in_batches(flow, z, solver)
    contents.samples = _samples(flow, drawn)
    tell("reconstructions")
    chosen = torch.randperm(len(data), generator=generator)[: amounts.images]
    images = data.images[chosen].to(next(flow.parameters()).device)
    back = reconstruct(flow, images, solver)
    contents.reconstructions = _reconstructions(flow, back)
    contents.layers, contents.layers_note = layer_rows(back.solution), _layers_note(back)
    tell("interpolation")
    contents.interpolation = _interpolation(flow, images[_unlike(data, chosen)], solver)
    tell("Algorithm 1, for growing numbers of iterations")
    contents.curves = _curves(flow, images, amounts.seconds)
    whole = "all" if count == len(data) else "the first"
    contents.headlines = [
        Headline(f"{bpd:.3f}", "bits per dimension", f"± {error:.3f}, {whole} {count} test images"),
        *_certificate(back, drawn),
        Headline(f"{flow.net.parameter_count():,}", "parameters", f"{_shape(flow)} pixels"),
    ]
    contents.facts = model_facts(flow)
    return contents


@torch.no_grad()
def bits_per_dim(
    flow: Flow, images: Tensor, most: int, seed: int = 0, batch: int = 128
) -> tuple[float, float, int]:
    """Mean, standard error and count over the first images, one draw of noise each.

    Examples:
        >>> images = torch.zeros(6, 1, 8, 8, dtype=torch.uint8)
        >>> bits_per_dim(Flow.preset("digits"), images, most=4)[2]
        4
    """
    images = images[:most]
    device = next(flow.parameters()).device
    found = [
        flow.bits_per_dim(images[index].to(device), seed, index=index.to(device)).double().cpu()
        for index in torch.arange(len(images)).split(batch)
    ]
    values = torch.cat(found)
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), error, len(values)


def affordable(flow: Flow, images: Tensor, passes: int, seconds: float) -> int:
    """How many images, at least four, can go through the net that often in about that time.

    A time of 0 means all of them.

    Examples:
        >>> images = torch.zeros(6, 1, 8, 8, dtype=torch.uint8)
        >>> affordable(Flow.preset("digits"), images, passes=10**9, seconds=1.0)
        4
        >>> affordable(Flow.preset("digits"), images, passes=10**9, seconds=0)
        6
    """
    if seconds <= 0 or len(images) <= LEAST:
        return len(images)
    each = pass_seconds(flow, images)
    return max(LEAST, min(len(images), int(seconds / (each * passes))))


@torch.no_grad()
def pass_seconds(flow: Flow, images: Tensor) -> float:
    """The time of one image's way through the net, in a batch of four."""
    few = images[:LEAST]
    float(flow.encode(few).sum())  # the first time is slower
    started = time.perf_counter()
    float(flow.encode(few).sum())  # waits for the device
    return (time.perf_counter() - started) / len(few)


def _curves(flow: Flow, images: Tensor, seconds: float) -> list[ErrorCurve]:
    """The curves of Algorithm 1, with fewer images and then fewer points where time is short."""
    points, each = ITERATIONS, pass_seconds(flow, images)
    while len(points) > 4 and LEAST * each * sum(points) * len(STEPS) > 2 * seconds > 0:
        points = points[:-1]
    count = affordable(flow, images, sum(points) * len(STEPS), seconds)
    return [error_curve(flow, images[:count], step, points) for step in STEPS]


def model_facts(flow: Flow) -> list[tuple[str, str]]:
    """A model in words."""
    config = flow.net.config
    return [
        ("images", f"{_shape(flow)}, {flow.levels} levels"),
        ("pairs of layers in each stage", ", ".join(map(str, config.pairs))),
        ("filters K in each stage", ", ".join(map(str, config.filters))),
        ("Mint layers", str(len(flow.net.layers()))),
        ("activation", config.activation),
        ("kernel", f"{config.kernel_size} × {config.kernel_size}"),
        ("form of t", config.t_form),
        ("λ of the logit", f"{flow.logit.lam:g}"),
        ("parameters", f"{flow.net.parameter_count():,}"),
    ]


def _samples(flow: Flow, solution: Solution) -> Panel:
    images = flow.to_images(solution.value.nan_to_num())
    lost = int((~solution.converged).sum())
    note = f"{len(images)} draws, none left out. {_certified(solution)}"
    return Panel(image_grid(images, flow.levels), note, good=lost == 0)


def _reconstructions(flow: Flow, back: Reconstruction) -> Panel:
    picture = paired_grid(back, flow.levels)
    exact, total = back.exact, len(back.originals)
    note = (
        "Test images through the network and back; every second row is the reconstruction. "
        f"{exact} of {total} came back byte for byte; the mean error ‖x − y‖² / D is "
        f"{float(back.errors.mean()):.1e} with pixels in [0, 1]."
    )
    return Panel(picture, note, good=exact == total)


def _unlike(data: ImageData, chosen: Tensor) -> list[int]:
    """Places among the chosen images of the first four with different labels, if there are any."""
    if data.labels is None:
        return list(range(min(4, len(chosen))))
    labels = data.labels[chosen].tolist()
    first = [place for place, label in enumerate(labels) if label not in labels[:place]]
    return [*first, *(place for place in range(len(labels)) if place not in first)][:4]


def _interpolation(flow: Flow, images: Tensor, solver: Solver | None) -> Panel | None:
    if len(images) < 4:
        return None
    try:
        between = interpolate(flow, images, solver)
    except InversionError as error:
        return Panel(None, f"Not drawn: {error}", good=False)
    note = (
        "Four test images in the corners, and what lies between their codes: both angles run "
        "over 0, π/14, …, 7π/14."
    )
    return Panel(image_grid(between, flow.levels, 8), note)


def _certificate(back: Reconstruction, drawn: Solution) -> list[Headline]:
    exact, total = back.exact, len(back.originals)
    worst = max(float(back.solution.residual.max()), float(drawn.residual.max()))
    sure = int(back.solution.converged.sum()) + int(drawn.converged.sum())
    tried = total + len(drawn.residual)
    return [
        Headline(
            f"{exact} / {total}",
            "images back byte for byte",
            f"mean error {float(back.errors.mean()):.1e}",
            good=exact == total,
        ),
        Headline(
            f"{worst:.1e}",
            "worst residual, end to end",
            f"{sure} of {tried} inversions certified",
            good=sure == tried,
        ),
    ]


def _certified(solution: Solution) -> str:
    lost, total = int((~solution.converged).sum()), len(solution.residual)
    if lost:
        return f"{lost} of {total} could not be certified: {solution.message}."
    worst = float(solution.residual.max())
    return f"All inversions are certified: run forward again, they meet their codes to {worst:.1e}."


def _layers_note(back: Reconstruction) -> str:
    rows, total = layer_rows(back.solution), len(back.originals)
    if not rows:
        return ""
    failures = sum(row.failures for row in rows)
    hardest = max(rows, key=lambda row: row.most_steps)
    return (
        f"{total} images, {len(rows)} layers, {failures} failures. Worst residual of a layer "
        f"{max(row.residual for row in rows):.1e}, end to end "
        f"{float(back.solution.residual.max()):.1e}, as shares of the largest |z|. Most steps in "
        f"layer {hardest.number} ({hardest.name}): {hardest.most_steps}."
    )


def _progress(run: Path, most: int = 4) -> list[tuple[bytes, str]]:
    """Some of the grids that a run has drawn, from its first to its last."""
    files = sorted((run / "samples").glob("step_*.png"))
    if len(files) > most:
        files = [files[round(k * (len(files) - 1) / (most - 1))] for k in range(most)]
    return [(file.read_bytes(), f"step {_step(file):,}") for file in files]


def _step(file: Path) -> int:
    digits: Any = file.stem.removeprefix("step_")
    return int(digits) if digits.isdecimal() else 0


def _shape(flow: Flow) -> str:
    return " × ".join(map(str, flow.shape))
