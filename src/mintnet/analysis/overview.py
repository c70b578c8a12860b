"""Everything that a report shows of a model, as tensors and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mintnet.analysis.interpolation import codes_between
from mintnet.analysis.invertibility import Verification, verify
from mintnet.analysis.layers import LayerRow, Progress
from mintnet.analysis.metrics import read_metrics, sample_pictures
from mintnet.analysis.round_trip import RoundTrip, round_trip
from mintnet.analysis.summary import Headline, class_names, facts, parameter_count
from mintnet.data import ImageData
from mintnet.models import Classifier, Flow
from mintnet.models.labelled import ImageClassifier
from mintnet.solvers import Solution, Solver

if TYPE_CHECKING:
    from mintnet.training.accuracy import Accuracy

ITERATIONS = (1, 2, 4, 8, 16, 32, 64, 120)
LARGE = 1024
"""Entries of a padded image above which a CPU needs long for a round trip."""

Stage = Callable[[str], Progress]
"""Called with the name of each part of the work; gives back what to tell its progress."""


@dataclass(frozen=True)
class Amounts:
    """How much a report looks at.

    Attributes:
        samples: images to draw.
        images: test images to reconstruct.
        likelihood: test images for the bits per dimension, at most.
        seconds: about the time for the curves of Algorithm 1; 0: no limit.
        seed: of samples, of noise and of the choice of images.
    """

    samples: int = 64
    images: int = 32
    likelihood: int = 1024
    seconds: float = 15.0
    seed: int = 0


@dataclass
class Overview:
    """What a report shows; whatever is empty is left out.

    Attributes:
        title: of the page.
        subtitle: a line below it.
        levels: number of grey levels of the images.
        headlines: the figures at the top.
        gallery: further pictures, as (title, note, PNG file).
        metric: which of the run's metrics is drawn, and what it is called.
        metrics: rows of the run's metrics.
        run_pictures: grids of samples drawn during the run, as (caption, PNG file).
        samples: (N, C, H, W) uint8, those that are not verified included.
        drawn: how the samples were inverted.
        between: (64, C, H, W) uint8, the images between four; None where one is not verified.
        verification: of a density model.
        accuracy: of a classifier, with the images it was measured on and names of the classes.
        trips: features of a classifier mapped back, in float64 and in float32.
        layers: how each layer was inverted.
        facts: names and values of the model's configuration.
        configuration: all of it, as plain data.
        bits_per_dim: on test images.
    """

    title: str
    subtitle: str = ""
    levels: int = 256
    headlines: list[Headline] = field(default_factory=list)
    gallery: list[tuple[str, str, bytes]] = field(default_factory=list)
    metric: tuple[str, str] = ("bpd", "bits per dimension")
    metrics: list[dict[str, Any]] = field(default_factory=list)
    run_pictures: list[tuple[str, bytes]] = field(default_factory=list)
    samples: Tensor | None = None
    drawn: Solution | None = None
    between: Tensor | None = None
    verification: Verification | None = None
    accuracy: Accuracy | None = None
    images: Tensor | None = None
    names: tuple[str, ...] = ()
    trips: list[RoundTrip] = field(default_factory=list)
    layers: list[LayerRow] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    bits_per_dim: float | None = None

    def to_dict(self) -> dict[str, Any]:
        curves = self.verification.curves if self.verification else []
        return {
            "bits_per_dim": self.bits_per_dim,
            "headlines": {item.label: item.value for item in self.headlines},
            "curves": [curve.to_dict() for curve in curves],
            "layers": [row.to_dict() for row in self.layers],
        }


def overview(
    model: Flow | ImageClassifier,
    data: ImageData,
    title: str,
    run: Path | None = None,
    amounts: Amounts | None = None,
    solver: Solver | None = None,
    stage: Stage = lambda _: lambda done, total: None,
) -> Overview:
    """Measure a model on test images, and draw from it if it is a density model.

    Args:
        model: a density model, a classifier or a ResNet.
        data: the test images; with labels for a classifier.
        title: of the page.
        run: the run folder, whose metrics and grids of samples are shown too.
        amounts: how much to look at.
        solver: for inverses; the default if not given.
        stage: called with the name of each part of the work.
    """
    found = Overview(title, levels=model.levels, facts=facts(model))
    if run:
        found.metrics, found.run_pictures = read_metrics(run), sample_pictures(run)
    measure = _measure_flow if isinstance(model, Flow) else _measure_classifier
    measure(found, model, data, amounts or Amounts(), solver, stage)  # type: ignore[arg-type]
    shape = " × ".join(map(str, model.shape))
    found.headlines.append(Headline(f"{parameter_count(model):,}", "parameters", f"{shape} pixels"))
    return found


@torch.no_grad()
def _measure_flow(
    found: Overview,
    flow: Flow,
    data: ImageData,
    amounts: Amounts,
    solver: Solver | None,
    stage: Stage,
) -> None:
    device = next(flow.parameters()).device
    stage("bits per dimension")
    bits = flow.bits_per_dim(data.images[: amounts.likelihood].to(device), amounts.seed).double()
    found.bits_per_dim = float(bits.mean())
    z = flow.sample_latents(amounts.samples, seed=amounts.seed)
    found.drawn = flow.solve(z, solver, progress=stage("samples"))
    found.samples = flow.to_images(found.drawn.value.nan_to_num())
    generator = torch.Generator().manual_seed(amounts.seed)
    chosen = torch.randperm(len(data), generator=generator)[: amounts.images]
    images = data.images[chosen].to(device)
    if len(images) >= 4:
        codes = codes_between(flow.encode(images[_unlike(data, chosen)]))
        between = flow.solve(codes, solver, progress=stage("interpolation"))
        if bool(between.converged.all()):
            found.between = flow.to_images(between.value)
    progress = stage("reconstructions, and Algorithm 1 for growing numbers of steps")
    found.verification = verify(
        flow, images, solver, iterations=ITERATIONS, seconds=amounts.seconds, progress=progress
    )
    found.layers = found.verification.layers
    error = float(bits.std()) / math.sqrt(len(bits)) if len(bits) > 1 else math.nan
    which = "all" if len(bits) == len(data) else "the first"
    back, both = found.verification.reconstruction, found.drawn.converged.tolist()
    both += back.solution.converged.tolist()
    worst = max(float(s.residual.max()) for s in (found.drawn, back.solution))
    found.headlines = [
        Headline(
            f"{found.bits_per_dim:.3f}",
            "bits per dimension",
            f"± {error:.3f}, {which} {len(bits)} test images",
        ),
        Headline(
            f"{back.exact} / {len(images)}",
            "images back byte for byte",
            f"mean error {float(back.errors.mean()):.1e}",
            good=back.exact == len(images),
        ),
        Headline(
            f"{worst:.1e}",
            "worst residual, end to end",
            f"{sum(both)} of {len(both)} inversions verified",
            good=all(both),
        ),
    ]


@torch.no_grad()
def _measure_classifier(
    found: Overview,
    model: ImageClassifier,
    data: ImageData,
    amounts: Amounts,
    solver: Solver | None,
    stage: Stage,
) -> None:
    from mintnet.training.accuracy import Accuracy

    if data.labels is None:
        raise ValueError(f"a classifier is measured on images with labels; {data.name} has none")
    found.metric = ("error", "share of mistakes")
    progress, scores = stage("accuracy"), []
    for part in data.images.split(250):
        scores.append(model(part.to(model.device)).double().cpu())
        progress(sum(map(len, scores)), len(data))
    found.accuracy = accuracy = Accuracy(torch.cat(scores), data.labels)
    found.images, found.names = data.images, class_names(data.name, model.classes)
    found.headlines = [
        Headline(
            f"{100 * accuracy.accuracy:.2f} %",
            "of test images are right",
            f"± {100 * accuracy.standard_error:.2f} %, {int((~accuracy.right).sum())} mistakes in "
            f"{len(data):,}",
        ),
        Headline(
            f"{100 * accuracy.calibration.error:.2f} %",
            "calibration error",
            f"cross entropy {accuracy.nats:.4f} nats",
        ),
    ]
    if not isinstance(model, Classifier):
        return
    slow = model.device.type == "cpu" and model.config.width * data.images[0, 0].numel() > LARGE
    chosen = data.images[: min(amounts.images, 8) if slow else amounts.images]
    found.trips = [
        round_trip(model, chosen, dtype, solver, progress=stage(f"features mapped back, {dtype}"))
        for dtype in (torch.float64, torch.float32)
    ]
    wide = found.trips[0]
    found.layers = list(wide.layers)
    found.headlines.append(
        Headline(
            f"{wide.byte_exact} / {wide.images}",
            "images back from their features",
            f"worst pixel off by {wide.worst_pixel_error:.0e} grey levels in float64",
            good=wide.byte_exact == wide.images == wide.verified,
        )
    )


def _unlike(data: ImageData, chosen: Tensor) -> list[int]:
    """Places among the chosen images of the first four with different labels, if there are any."""
    labels = chosen.tolist() if data.labels is None else data.labels[chosen].tolist()
    first = [place for place, label in enumerate(labels) if label not in labels[:place]]
    return [*first, *(place for place in range(len(labels)) if place not in first)][:4]
