"""Histogram equalization: pixels in [0, 1] to the real line by the distribution of grey levels."""

import math

import torch
from torch import Tensor, nn

from mintnet.bijections.base import EntrywiseBijection

LAMBDA = 1e-6
SMOOTHING = 1.0  # pixels added to the count of each level, so that none has probability 0


class Equalize(EntrywiseBijection):
    r"""x ↦ logit(λ + (1 − 2λ) P(x)), with P the distribution function of dequantized pixels.

    P is linear within each of the L ``levels``; its steps are the levels' probabilities in the
    training images (`initialize`), at first 1/L. The marginal distribution of a pixel's image is
    then the standard logistic one, and a level that most pixels have, as the black of MNIST, is as
    wide as its probability: smooth densities behind this map can follow its edges. With
    p = λ + (1 − 2λ) P(x), the slope is (1 − 2λ) P'(x) / (p (1 − p)).

    Examples:
        >>> pixels = Equalize(levels=4)
        >>> pixels.initialize(torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 3]]))
        >>> y, _ = pixels(torch.tensor([[0.125, 0.25, 0.9]]))
        >>> [round(p, 2) for p in torch.sigmoid(y[0]).tolist()]   # 9 of 16 pixels are black
        [0.28, 0.56, 0.92]
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels, shares = levels, torch.full((levels,), -math.log(levels))
        self.log_shares = nn.Parameter(shares, requires_grad=False)

    @torch.no_grad()
    def initialize(self, images: Tensor) -> None:
        """Take the probabilities of the levels from integer images of any shape."""
        counts = torch.bincount(images.flatten().int(), minlength=self.levels).double() + SMOOTHING
        self.log_shares.copy_((counts / counts.sum()).log())

    @property
    def domain(self) -> tuple[float, float]:  # type: ignore[override]
        """[0, 1], and a little more: P goes on with the slopes that it has at the ends."""
        shares, margin = self._shares(), LAMBDA / (1 - 2 * LAMBDA) / self.levels
        return -margin / float(shares[0]), 1 + margin / float(shares[-1])

    def domain_of(self, dtype: torch.dtype) -> tuple[float, float]:
        """The domain less some units in the last place, so that logit and slope are finite."""
        (low, high), margin = self.domain, 8 * torch.finfo(dtype).eps
        return low * (1 - margin), max(1.0, high - margin)

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # p / (1 − p) without the factor 1 − 2λ, which exporters of graphs take for 1
        shares, margin = self._shares(), LAMBDA / (1 - 2 * LAMBDA)
        scaled = self.levels * x.double()
        level = scaled.detach().floor().long().clamp(0, self.levels - 1)
        below, share = (shares.cumsum(0) - shares)[level], shares[level]
        inside = below + (scaled - level) * share
        log_p, log_q = (margin + inside).log(), (margin + 1 - inside).log()
        slope = (self.levels * share).log() + math.log1p(2 * margin) - log_p - log_q
        return (log_p - log_q).to(x), slope.to(x)

    def invert(self, z: Tensor) -> Tensor:
        shares = self._shares()
        share = (torch.sigmoid(z.double()) - LAMBDA) / (1 - 2 * LAMBDA)
        above = shares.cumsum(0)
        level = torch.searchsorted(above, share.detach(), right=True).clamp(max=self.levels - 1)
        x = (level + (share - (above - shares)[level]) / shares[level]) / self.levels
        return x.to(z).clamp(*self.domain_of(z.dtype))

    def _shares(self) -> Tensor:
        return self.log_shares.double().softmax(0)

    def extra_repr(self) -> str:
        return f"{self.levels} levels"
