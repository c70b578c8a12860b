"""Bits per dimension of a whole set of images, with its standard error."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from mintnet.data import ImageData
from mintnet.models.flow import Flow
from mintnet.training.devices import Devices, float32_math, make_trainer, quiet
from mintnet.training.files import RunError


@dataclass(frozen=True)
class Evaluation:
    """Figures of an evaluation.

    Attributes:
        bits_per_dim: the mean over images and draws.
        standard_error: of that mean, over images: the spread of the images' means over draws,
            divided by the root of their number.
        nats: the mean loss of an image.
        images: how many there were.
        draws: of noise for each image.
        seed: of the noise.
    """

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
        draws: of dequantization noise for each image.
        seed: of the noise.
        batch_size: images at a time, on each device.
        devices: where; one device if not given.

    Examples:
        >>> from mintnet.data import load
        >>> result = evaluate(Flow.preset("digits"), load("digits", "test"), batch_size=180)
        >>> result.images, result.bits_per_dim > 5
        (360, True)
    """
    for name, value in (("draws", draws), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    if (data.shape, data.levels) != (flow.shape, flow.levels):
        raise RunError(
            f"the model is one of images of shape {flow.shape} with {flow.levels} levels; the "
            f"images of {data.name} have shape {data.shape} and {data.levels} levels"
        )
    from mintnet.training.evaluation_module import EvaluationModule

    with quiet(), float32_math(tf32=False):
        module = EvaluationModule(flow, data.images, draws, seed, batch_size)
        make_trainer(devices or Devices(), logger=False).test(module, verbose=False)
    return _summary(flow, module.bits, draws, seed)


def _summary(flow: Flow, bits: Tensor, draws: int, seed: int) -> Evaluation:
    mean = float(bits.mean())
    error = float(bits.std()) / math.sqrt(len(bits)) if len(bits) > 1 else math.inf
    return Evaluation(
        bits_per_dim=mean,
        standard_error=error,
        nats=mean * flow.dimensions * math.log(2),
        images=len(bits),
        draws=draws,
        seed=seed,
    )
