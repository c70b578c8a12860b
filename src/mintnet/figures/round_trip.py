"""Images to features and back through a classifier: certificates, and how errors grow."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mintnet.bijections import BatchNorm, MintLayer
from mintnet.models import Classifier
from mintnet.precision import true_float32
from mintnet.solvers import Solution, Solver

BATCH = 16


@dataclass(frozen=True)
class LayerError:
    """One Mint layer, with the batch normalization before it, on the way back.

    Attributes:
        number: counted from 1 at the image's side.
        name: what it is.
        steps: the most that a sample took.
        residual: the worst, as a share of the largest |z| that enters the layer's inverse.
        failures: samples that are not certified.
        error: root mean square of the difference to what went in on the way there.
        scale: root mean square of what went in.
        amplification: the error, divided by that of the layer inverted before this one; None at
            the features, where there is none before.
    """

    number: int
    name: str
    steps: int
    residual: float
    failures: int
    error: float
    scale: float
    amplification: float | None

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class RoundTrip:
    """How features were mapped back to images, in one precision.

    An inversion that failed may have no value: figures over all images are NaN or infinite then.

    Attributes:
        precision: float32 or float64.
        images: how many.
        certified: how many of them in every layer and end to end.
        residual: the worst, end to end.
        worst_pixel_error: the largest difference of a pixel, in grey levels.
        mean_square_error: of what enters the network (normalised pixels), over all entries.
        byte_exact: images that come back byte for byte; none of NaN does.
        padding_energy: mean square of the padding, over all images.
        worst_padding_energy: of a single image.
        layers: from the image's side on.
    """

    precision: str
    images: int
    certified: int
    residual: float
    worst_pixel_error: float
    mean_square_error: float
    byte_exact: int
    padding_energy: float
    worst_padding_energy: float
    layers: tuple[LayerError, ...]

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {**asdict(self), "layers": [row.to_dict() for row in self.layers]}


@torch.no_grad()
def round_trip(
    classifier: Classifier,
    images: Tensor,
    dtype: torch.dtype = torch.float64,
    solver: Solver | None = None,
    batch: int = BATCH,
    tick: Callable[[int], None] | None = None,
) -> RoundTrip:
    """Features of images mapped back, and compared with what was there on the way.

    Args:
        classifier: in evaluation mode; it is not changed.
        images: (N, C, H, W) uint8.
        dtype: float32 or float64, for everything.
        solver: for the inverse; the default if not given.
        batch: images at a time.
        tick: hears of each batch that is done.

    Examples:
        >>> clf = Classifier.preset("digits").eval()
        >>> trip = round_trip(clf, torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8))
        >>> trip.certified, trip.worst_pixel_error < 1e-6, len(trip.layers)
        (3, True, 8)
    """
    if not len(images):
        raise ValueError("expected at least one image; got none")
    model = copy.deepcopy(classifier).to(dtype)
    tally = _Tally(model)
    with true_float32():
        for part in images.split(batch):
            tally.add(part.to(model.device), solver)
            if tick:
                tick(len(part))
    return tally.summary(str(dtype).removeprefix("torch."))


class _Tally:
    """Sums over batches."""

    def __init__(self, model: Classifier) -> None:
        self.model = model
        count = len(model.layers())
        self.squares = torch.zeros(count, 2, dtype=torch.float64)
        self.entries = torch.zeros(count, dtype=torch.float64)
        self.residuals, self.steps, self.failures = [0.0] * count, [0] * count, [0] * count
        self.images = self.certified = self.exact = 0
        self.residual = self.pixel = self.error = self.padding = self.worst_padding = 0.0

    def add(self, images: Tensor, solver: Solver | None) -> None:
        model = self.model
        x = model.prepared(images)
        inputs, features = _inputs(model, model.padded(x))
        found = model.solve(features, solver)
        self._add_layers(inputs, found.solution)
        difference = found.images - x
        levels = model.pixels.denormalized(found.images) - model.pixels.denormalized(x)
        self.images += len(x)
        self.certified += int(found.solution.converged.sum())
        self.residual = _worse(self.residual, found.solution.residual)
        self.pixel = _worse(self.pixel, levels.abs())
        self.error += float(difference.double().square().flatten(1).mean(1).sum())
        known = found.images.isfinite()  # bytes made of NaN would be black, which is a picture
        same = known & (model.to_images(found.images.nan_to_num()) == images)
        self.exact += int(same.flatten(1).all(1).sum())
        self.padding += float(found.padding_energy.double().sum())
        self.worst_padding = _worse(self.worst_padding, found.padding_energy)

    def _add_layers(self, inputs: list[Tensor], solution: Solution) -> None:
        """Parts come in the order of inversion: a Mint layer, then its normalization."""
        number = len(inputs)
        for part, leaf in zip(solution.parts, reversed(self.model.chain.leaves()), strict=True):
            if isinstance(leaf, MintLayer):
                number -= 1
                self.residuals[number] = _worse(self.residuals[number], part.residual)
                self.steps[number] = max(self.steps[number], int(part.steps.max()))
            if isinstance(leaf, MintLayer | BatchNorm):
                self.failures[number] += int((~part.converged).sum())
            if isinstance(leaf, BatchNorm):
                before = inputs[number]
                error = (part.value - before).double().square().sum()
                scale = before.double().square().sum()
                self.squares[number] += torch.stack([error, scale]).cpu()
                self.entries[number] += before.numel()

    def summary(self, precision: str) -> RoundTrip:
        roots = (self.squares / self.entries[:, None]).sqrt()
        rows = []
        for number, layer in enumerate(self.model.layers()):
            error = float(roots[number, 0])
            after = float(roots[number + 1, 0]) if number + 1 < len(roots) else 0.0
            rows.append(
                LayerError(
                    number + 1,
                    layer.name,
                    self.steps[number],
                    self.residuals[number],
                    self.failures[number],
                    error,
                    float(roots[number, 1]),
                    error / after if after > 0 else None,
                )
            )
        return RoundTrip(
            precision,
            self.images,
            self.certified,
            self.residual,
            self.pixel,
            self.error / self.images,
            self.exact,
            self.padding / self.images,
            self.worst_padding,
            tuple(rows),
        )


def _worse(before: float, found: Tensor) -> float:
    """The largest of all; NaN is the worst there is, which Python's max would pass over."""
    worst = float(found.max())
    return math.nan if math.isnan(worst) or math.isnan(before) else max(worst, before)


def _inputs(model: Classifier, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """What enters each Mint layer's normalization, and the features."""
    inputs = []
    for part in model.chain.leaves():
        if isinstance(part, BatchNorm):
            inputs.append(x)
        x = part.transform(x)[0]
    return inputs, x
