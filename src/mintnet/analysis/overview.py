"""Everything that a report shows of a model, as tensors and numbers."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mintnet.analysis.interpolation import codes_between
from mintnet.analysis.layers import LayerRow, by, class_names, facts
from mintnet.analysis.reconstruction import RoundTrip, Verification, round_trip, verify
from mintnet.data import ImageData
from mintnet.models import Classifier, Flow
from mintnet.models.base import Model
from mintnet.models.batches import Progress
from mintnet.models.classifier import ImageClassifier
from mintnet.solvers import Solution, Solver

if TYPE_CHECKING:
    from mintnet.training import Accuracy

IMAGES = 32  # test images to reconstruct; a quarter of them through a classifier
LIKELIHOOD = 1024  # test images for the bits per dimension, at most
CURVE_IMAGES, CURVE_STEPS = 8, (1, 2, 4, 8, 16, 32)  # of the curves of Algorithm 1

Stage = Callable[[str], Progress]  # the name of a part ↦ what to tell its progress


class Headline(NamedTuple):
    """A figure that stands at the top of a page or a screen."""

    value: str
    label: str
    note: str = ""
    good: bool = True  # whether it is as it should be


@dataclass
class Overview:
    """What a report shows; whatever is empty is left out."""

    title: str
    subtitle: str = ""
    levels: int = 256  # grey levels of the images
    headlines: list[Headline] = field(default_factory=list)
    gallery: list[tuple[str, str, bytes]] = field(default_factory=list)  # title, note, PNG file
    metric: tuple[str, str] = ("bpd", "bits per dimension")  # of the run, and what it is called
    metrics: list[dict[str, Any]] = field(default_factory=list)  # rows of the run's metrics
    run_pictures: list[tuple[str, bytes]] = field(default_factory=list)  # caption, PNG file
    samples: Tensor | None = None  # (N, C, H, W) uint8, those that are not verified included
    drawn: Solution | None = None  # how the samples were inverted
    between: Tensor | None = None  # (64, C, H, W) uint8; None where one is not verified
    verification: Verification | None = None  # of a density model
    accuracy: "Accuracy | None" = None  # of a classifier
    images: Tensor | None = None  # that the accuracy is of
    names: tuple[str, ...] = ()  # of the classes
    trips: list[RoundTrip] = field(default_factory=list)  # features mapped back, 64 and 32 bits
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
            "layers": [asdict(row) for row in self.layers],
        }


@torch.no_grad()
def overview(
    model: Model,
    data: ImageData,
    title: str,
    run: Path | None = None,
    samples: int = 64,
    seed: int = 0,
    solver: Solver | None = None,
    stage: Stage = lambda _: lambda done, total: None,
) -> Overview:
    """Measure a model on test images, draw from it, and take metrics and grids of its ``run``."""
    found = Overview(title, levels=model.levels, facts=facts(model))
    if run:
        from mintnet.training import RunFolder

        found.metrics, files = RunFolder(run).metrics(), sorted(run.glob("samples/step_*.png"))
        spread = {round(k * (len(files) - 1) / 3) for k in range(4)} if files else set()
        found.run_pictures = [
            (f"step {file.stem[5:].lstrip('0') or 0}", file.read_bytes())
            for file in (files[k] for k in sorted(spread))
        ]
    if isinstance(model, Flow):
        _measure_flow(found, model, data, samples, seed, solver, stage)
    elif isinstance(model, ImageClassifier):
        _measure_classifier(found, model, data, solver, stage)
    count = f"{model.parameter_count():,}"
    found.headlines.append(Headline(count, "parameters", f"{by(model.shape)} pixels"))
    return found


def _measure_flow(
    found: Overview, flow: Flow, data: ImageData, samples: int, seed: int, solver: Any, stage: Stage
) -> None:
    stage("bits per dimension")
    labels = data.labels[:LIKELIHOOD].to(flow.device) if data.labels is not None else None
    given = {"labels": labels if flow.classes else None}
    bits = flow.bits_per_dim(data.images[:LIKELIHOOD].to(flow.device), seed, **given).double()
    found.bits_per_dim = float(bits.mean())
    z = flow.sample_latents(samples, seed=seed)
    found.drawn = flow.solve(z, solver, progress=stage("samples"))
    found.samples = flow.to_images(found.drawn.value.nan_to_num())
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    images = data.images[chosen[:IMAGES]].to(flow.device)
    if len(images) >= 4:
        codes = codes_between(flow, flow.encode(images[:4]))
        between = flow.solve(codes, solver, progress=stage("interpolation"))
        if bool(between.converged.all()):
            found.between = flow.to_images(between.value)
    progress = stage("reconstructions, and Algorithm 1 for growing numbers of steps")
    curves: dict[str, Any] = {"iterations": CURVE_STEPS, "curve_images": CURVE_IMAGES}
    found.verification = verify(flow, images, solver, **curves, progress=progress)
    found.layers, back = found.verification.layers, found.verification.reconstruction
    error = float(bits.std()) / math.sqrt(len(bits)) if len(bits) > 1 else math.nan
    note = f"± {error:.3f}, {len(bits)} of {len(data)} test images"
    exact, mean = back.exact == len(images), f"mean error {float(back.errors.mean()):.1e}"
    good = torch.cat([found.drawn.converged, back.solution.converged])
    worst = float(torch.cat([found.drawn.residual, back.solution.residual]).max())
    verified = f"{int(good.sum())} of {len(good)} inversions verified"
    found.headlines = [
        Headline(f"{found.bits_per_dim:.3f}", "bits per dimension", note),
        Headline(f"{back.exact} / {len(images)}", "images back byte for byte", mean, exact),
        Headline(f"{worst:.1e}", "worst residual, end to end", verified, bool(good.all())),
    ]


def _measure_classifier(
    found: Overview, model: ImageClassifier, data: ImageData, solver: Solver | None, stage: Stage
) -> None:
    from mintnet.training import Accuracy

    if data.labels is None:
        raise ValueError(f"a classifier is measured on images with labels; {data.name} has none")
    found.metric = ("error", "share of mistakes")
    progress, scores = stage("accuracy"), []
    for part in data.images.split(250):
        scores.append(model(part.to(model.device)).double().cpu())
        progress(sum(map(len, scores)), len(data))
    found.accuracy = accuracy = Accuracy(torch.cat(scores), data.labels)
    found.images, found.names = data.images, class_names(data.name, model.classes)
    wrong = f"{int((~accuracy.right).sum())} mistakes in {len(data):,}"
    note = f"± {100 * accuracy.standard_error:.2f} %, {wrong}"
    error, nats = accuracy.calibration.error, f"cross entropy {accuracy.nats:.4f} nats"
    found.headlines = [
        Headline(f"{100 * accuracy.accuracy:.2f} %", "of test images are right", note),
        Headline(f"{100 * error:.2f} %", "calibration error", nats),
    ]
    if not isinstance(model, Classifier):
        return
    chosen = data.images[: IMAGES // 4]
    found.trips = [
        round_trip(model, chosen, dtype, solver, progress=stage(f"features mapped back, {dtype}"))
        for dtype in (torch.float64, torch.float32)
    ]
    wide = found.trips[0]
    found.layers, good = list(wide.layers), wide.byte_exact == wide.images
    note = f"worst pixel off by {wide.worst_pixel_error:.0e} grey levels in float64"
    value = f"{wide.byte_exact} / {wide.images}"
    found.headlines.append(Headline(value, "images back from their features", note, good))
