"""What the loss usually is, and what becomes of images and batches that are far above it."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

FAR = 10.0
"""So many mean deviations above the mean, a loss is out of the ordinary."""
SHARE = 0.25
"""If that is also such a share of the mean: large batches deviate little, and recover."""
FEW = 50
"""Losses that must have been seen before anything is."""
RATE = 0.02
"""Of the running means, once there are enough to mean over."""
NEAR = 5.0
"""A loss further up than so many mean deviations is taken for one that is so far up."""
SOME = 10
"""Losses from which on that is so."""


@dataclass
class UsualLoss:
    """Running means of the loss and of its distance from that mean.

    A batch whose loss is out of the ordinary has a gradient that harms the weights and the
    moments. One image alone makes none, see `tempered`.

    Examples:
        >>> usual = UsualLoss()
        >>> for number in range(60):
        ...     usual.add(100.0 + number % 2)
        >>> round(usual.bound), UsualLoss().bound
        (126, inf)
    """

    mean: float = 0.0
    deviation: float = 0.0
    seen: float = 0.0

    @property
    def bound(self) -> float:
        """The largest loss that is nothing special."""
        if self.seen < FEW:
            return math.inf
        return self.mean + max(FAR * self.deviation, SHARE * abs(self.mean))

    def ceiling(self, reach: float) -> float:
        """The loss of an image that lies ``reach`` above the usual."""
        return math.inf if self.seen < FEW else self.mean + reach

    def add(self, loss: float) -> None:
        """Take the loss of one more step into account."""
        if self.seen >= SOME:  # an outlier in the beginning would hide all that follow
            loss = min(loss, self.mean + NEAR * self.deviation)
        self.seen += 1
        rate = max(RATE, 1 / self.seen)
        self.mean += rate * (loss - self.mean)
        self.deviation += rate * (abs(loss - self.mean) - self.deviation)

    def forget(self) -> None:
        """Begin anew."""
        self.mean, self.deviation, self.seen = 0.0, 0.0, 0.0

    def state(self) -> list[float]:
        """Plain numbers, from which ``UsualLoss(*numbers)`` is the same again."""
        return list(astuple(self))


def tempered(losses: Tensor, ceiling: float | Tensor, reach: float) -> Tensor:
    """Losses of images, those above a ceiling c tempered: c + r log(1 + (L − c) / r).

    A density can give one image a log-likelihood of −10⁶, for one draw of noise or for good. The
    gradient of its batch is then that image's alone. To leave such steps out would be to never
    learn from that image; so its gradient is weakened to about that of any other, since
    the logarithm of |z|² / 2 grows as that of |z| does.

    Shapes: (batch,) → (batch,).

    Examples:
        >>> tempered(torch.tensor([3.0, 1e9]), ceiling=5.0, reach=2.0)
        tensor([ 3.0000, 45.0602])
    """
    if math.isinf(reach):
        return losses
    above = (losses - ceiling).clamp(min=0)
    return torch.where(above > 0, ceiling + reach * (above / reach).log1p(), losses)
