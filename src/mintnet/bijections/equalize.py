"""Histogram equalization: pixels in [0, 1] to the real line by the distribution of grey levels."""

import math

import torch
from torch import Tensor, nn

from mintnet.bijections.base import EntrywiseBijection
from mintnet.bijections.grey_levels import GreyLevelMixture


class Equalize(EntrywiseBijection):
    """x ↦ logit F(x) with F the distribution function of dequantized pixels, linear in each level.

    It is the `GreyLevelMixture` of one logistic component with knots at the logits of the shares of
    pixels below each level, whose logarithms are ``log_shares``. Models of several mixture layers
    that were trained before `MixtureLayer` knew grey levels have it in front of them.

    Examples:
        >>> Equalize(levels=4)(torch.tensor([[0.125, 0.25, 0.5]]))[0].sigmoid()
        tensor([[0.1250, 0.2500, 0.5000]])
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        shares = torch.full((levels,), -math.log(levels))
        self.log_shares = nn.Parameter(shares, requires_grad=False)

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = self._mixture(x).value_and_slope(x)
        return value, slope.log()

    def invert(self, z: Tensor) -> Tensor:
        return self._mixture(z).invert(z)

    def _mixture(self, like: Tensor) -> GreyLevelMixture:
        below = self.log_shares.double().softmax(0).cumsum(0)[:-1].logit()
        ends = below.new_zeros(1)  # they stand for infinity
        zero = like.new_zeros(1)
        return GreyLevelMixture(zero, zero, zero, zero[0], torch.cat([ends, below, ends]).to(like))
