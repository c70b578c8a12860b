"""What can be measured in the time there is."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from mintnet.figures.invertibility import ErrorCurve, error_curve
from mintnet.models import Flow

STEPS = (1.0, 1 / 3.5)
"""α of the curves: the natural one, and the paper's for MNIST."""

ITERATIONS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 120)

LEAST = 4
"""Images below which a measurement says little."""


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


def affordable_curves(flow: Flow, images: Tensor, seconds: float) -> list[ErrorCurve]:
    """The curves of Algorithm 1, with fewer images and then fewer points where time is short."""
    points, each = ITERATIONS, pass_seconds(flow, images)
    while len(points) > 4 and LEAST * each * sum(points) * len(STEPS) > 2 * seconds > 0:
        points = points[:-1]
    count = affordable(flow, images, sum(points) * len(STEPS), seconds)
    return [error_curve(flow, images[:count], step, points) for step in STEPS]
