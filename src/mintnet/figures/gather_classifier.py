"""Everything that a report shows of a classifier, computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from mintnet.data import ImageData
from mintnet.figures.classification import class_names, evaluation_picture
from mintnet.figures.curves import read_metrics
from mintnet.figures.layers import LayerRow
from mintnet.figures.report import Contents, Headline, Photograph
from mintnet.figures.round_trip import RoundTrip, round_trip
from mintnet.models import Classifier
from mintnet.models.labelled import ImageClassifier
from mintnet.solvers import Solver
from mintnet.training.accuracy import Accuracy

LARGE = 1024
"""Entries of a padded image above which a CPU takes its time for a round trip."""


@torch.no_grad()
def gather_classifier(
    model: ImageClassifier,
    data: ImageData,
    title: str,
    run: Path | None = None,
    images: int = 32,
    solver: Solver | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Contents:
    """Measure a classifier on all of its test images, and map the features of some back.

    Args:
        model: the classifier, or a ResNet, of which nothing is mapped back.
        data: the test images, with labels.
        title: of the page.
        run: the run folder, whose metrics are shown too.
        images: how many to map back; at most 8 where that takes long.
        solver: for inverses; the default if not given.
        tell: hears what is being done.
    """
    contents = Contents(title, metrics=read_metrics(run) if run else [])
    contents.figure = ("error", "share of mistakes")
    tell("accuracy")
    found = _accuracy(model, data)
    contents.headlines = [
        Headline(
            f"{100 * found.accuracy:.2f} %",
            "of test images are right",
            f"± {100 * found.standard_error:.2f} %, {int((~found.right).sum())} mistakes in "
            f"{len(data):,}",
        ),
        Headline(
            f"{100 * found.calibration.error:.2f} %",
            "calibration error",
            f"cross entropy {found.nats:.4f} nats",
        ),
    ]
    names = class_names(data.name, model.classes)
    words = "How test images of each class were called, whether confidence can be trusted, and "
    contents.photographs = [
        Photograph(
            "On test images",
            evaluation_picture(found, data.images, data.levels, names, "", 24),
            f"{words}where it was most sure of what is wrong.",
        )
    ]
    if isinstance(model, Classifier):
        tell("features mapped back")
        slow = model.device.type == "cpu" and model.config.width * data.images[0, 0].numel() > LARGE
        chosen = data.images[: min(images, 8) if slow else images]
        wide, narrow = (
            round_trip(model, chosen, dtype, solver) for dtype in (torch.float64, torch.float32)
        )
        contents.headlines.append(_headline(wide))
        contents.layers, contents.layers_note = _rows(wide), _note(wide, narrow)
    shape = " × ".join(map(str, model.shape))
    contents.headlines.append(
        Headline(f"{model.parameter_count():,}", "parameters", f"{shape} pixels")
    )
    return contents


def _accuracy(model: ImageClassifier, data: ImageData, batch: int = 250) -> Accuracy:
    assert data.labels is not None
    found = [model(part.to(model.device)).double().cpu() for part in data.images.split(batch)]
    return Accuracy(torch.cat(found), data.labels)


def _headline(trip: RoundTrip) -> Headline:
    return Headline(
        f"{trip.byte_exact} / {trip.images}",
        "images back from their features",
        f"worst pixel off by {trip.worst_pixel_error:.0e} grey levels in float64",
        good=trip.byte_exact == trip.images and trip.certified == trip.images,
    )


def _rows(trip: RoundTrip) -> list[LayerRow]:
    return [
        LayerRow(row.number, row.name, row.steps, row.steps, row.residual, row.failures)
        for row in trip.layers
    ]


def _note(wide: RoundTrip, narrow: RoundTrip) -> str:
    return " ".join(
        f"{trip.precision}: {trip.certified} of {trip.images} inversions certified, worst pixel "
        f"off by {trip.worst_pixel_error:.1e} grey levels, mean square error "
        f"{trip.mean_square_error:.1e}, energy in the padding {trip.padding_energy:.1e}."
        for trip in (wide, narrow)
    )
