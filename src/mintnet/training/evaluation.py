"""How good a model is on a whole set of images: bits per dimension, or log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mintnet.data import ImageData
from mintnet.models.flow import Flow
from mintnet.models.labelled import ImageClassifier
from mintnet.training.accuracy import Accuracy
from mintnet.training.data import part_of
from mintnet.training.devices import Devices, float32_math, make_fabric
from mintnet.training.folder import RunError
from mintnet.training.task import check_labels


@dataclass(frozen=True)
class Evaluation:
    """Mean bits per dimension with its standard error over images, and what they are of."""

    bits_per_dim: float
    standard_error: float
    nats: float
    images: int
    draws: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return asdict(self)


def evaluate(
    flow: Flow,
    data: ImageData,
    *,
    draws: int = 1,
    seed: int = 0,
    batch_size: int = 100,
    devices: Devices | None = None,
) -> Evaluation:
    """Mean bits per dimension over all images, in true float32 (or the model's float64).

    The noise of an image follows from seed, draw and its place, so that the figures are those of
    `Flow.bits_per_dim` whatever the batch size and the number of processes.

    Args:
        flow: the model.
        data: the images.
        draws: dequantization draws for each image.
        seed: of the noise.
        batch_size: images at a time, on each device.
        devices: where; one device if not given.

    Examples:
        >>> from mintnet.data import load
        >>> result = evaluate(Flow.preset("digits"), load("digits", "test"), batch_size=180)
        >>> result.images, result.bits_per_dim > 5
        (360, True)
    """
    if draws < 1:
        raise ValueError(f"draws must be at least 1; got {draws}")

    def bits(images: Tensor, index: Tensor) -> Tensor:
        found = [flow.bits_per_dim(images, seed, draw, index).double() for draw in range(draws)]
        return torch.stack(found).mean(0)[:, None]

    each = _over_images(flow, data, bits, 1, batch_size, devices)[:, 0]
    mean = float(each.mean())
    error = float(each.std()) / math.sqrt(len(each)) if len(each) > 1 else math.inf
    nats = mean * flow.dimensions * math.log(2)
    return Evaluation(mean, error, nats, len(each), draws, seed)


def evaluate_classifier(
    classifier: ImageClassifier,
    data: ImageData,
    *,
    batch_size: int = 100,
    devices: Devices | None = None,
) -> Accuracy:
    """Log-probabilities of all images, in true float32 (or the model's float64).

    Examples:
        >>> from mintnet.data import load
        >>> from mintnet.models import Classifier
        >>> found = evaluate_classifier(Classifier.preset("digits"), load("digits", "test"))
        >>> found.log_probs.shape, int(found.confusion.sum())
        (torch.Size([360, 10]), 360)
    """
    check_labels(data, classifier.classes, "evaluation")
    assert data.labels is not None
    found = _over_images(
        classifier, data, lambda x, _: classifier(x), classifier.classes, batch_size, devices
    )
    return Accuracy(found, data.labels)


@torch.no_grad()
def _over_images(
    model: Flow | ImageClassifier,
    data: ImageData,
    function: Callable[[Tensor, Tensor], Tensor],
    width: int,
    batch_size: int,
    devices: Devices | None,
) -> Tensor:
    """``function(images, index)`` of all images, each process computing its part, (N, width)."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")
    if (data.shape, data.levels) != (model.shape, model.levels):
        raise RunError(
            f"the model is one of images of shape {model.shape} with {model.levels} levels; the "
            f"images of {data.name} have shape {data.shape} and {data.levels} levels"
        )
    training = model.training
    with float32_math(tf32=False):
        fabric = make_fabric(devices or Devices())
        model.to(fabric.device).eval()
        values = torch.zeros(len(data), width, dtype=torch.float64)
        places = part_of(torch.arange(len(data)), fabric.global_rank, fabric.world_size)
        for part in places.split(batch_size):
            found = function(data.images[part].to(fabric.device), part.to(fabric.device))
            values[part] = found.double().cpu()
        model.train(training)
        if fabric.world_size > 1:
            values = fabric.all_reduce(values.to(fabric.device), reduce_op="sum")  # type: ignore
    return values.cpu()
