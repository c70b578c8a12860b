"""Mixtures of pixels: distribution functions that are linear within each grey level."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

SHARE = 1e-5  # of the uniform distribution: no level has probability 0
FAR = 1e4  # stands for infinity, where a logistic distribution function is 0 or 1


class GreyLevelMixture(NamedTuple):
    r"""x ↦ logit F(x) for pixels x in [0, 1], where F is linear within each of L grey levels.

    Dequantized pixels are uniform within their level, and so is this density: with the knots
    c₀ < … < c_L, where the levels begin and end for the mixture, level j has the probability

        Pⱼ = (1 − ε) Σₖ πₖ (σ(uₖ(cⱼ₊₁)) − σ(uₖ(cⱼ))) + ε / (L + 2),    uₖ(c) = aₖ (c − ℓ) − mₖ

    for j = 0, …, L − 1; the first and last level have the tails as well (c₀ and c_L stand for −∞
    and ∞). The slope is L · Pⱼ / (F (1 − F)) > 0. At 0 F is ε / (L + 2), at 1 one less that;
    farther out the function goes on with slope 1: it takes every real value. It is continuous, with
    kinks where levels meet, as a leaky ReLU has one. A level that is all but certain has nearly all
    real values: an inverse wants float64.

    Shapes: as those of `Mixture`, of which it has ``log_weight``, ``log_slope`` (log a), ``offset``
    (m) and ``centre`` (ℓ); ``knots`` is (L + 1,).

    Examples:
        >>> one, knots = torch.zeros(1, 1), torch.tensor([-1.0, 0.0, 1.0])
        >>> m = GreyLevelMixture(one, one, one, torch.zeros(1), knots)   # both levels have P = 1/2
        >>> m.value_and_slope(torch.tensor([0.25]))[0].sigmoid()
        tensor([0.2500])
    """

    log_weight: Tensor
    log_slope: Tensor
    offset: Tensor
    centre: Tensor
    knots: Tensor

    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """logit F(x) and its derivative, of the shape of x."""
        inside, levels = x.clamp(0.0, 1.0), len(self.knots) - 1
        level, share = place(inside, self.knots)
        below, mass, above = self.around(level)
        below, above = below + share * mass, above + (1.0 - share) * mass
        slope = torch.where(x == inside, levels * mass / (below * above), 1.0)
        return below.log() - above.log() + (x - inside), slope

    def value(self, x: Tensor) -> Tensor:
        """logit F(x) alone, with several points of each entry on the last axis of x."""
        weight, slope, offset = (part.unsqueeze(-2) for part in self[:3])
        each = GreyLevelMixture(weight, slope, offset, self.centre[..., None], self.knots)
        return each.value_and_slope(x)[0]

    def around(self, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The probabilities below, in and above a level: sums of positive terms."""
        levels, a = len(self.knots) - 1, self.log_slope.exp()
        left, right = self.knots[level], self.knots[level + 1]
        first, last = (level == 0)[..., None], (level == levels - 1)[..., None]
        low = (a * (left - self.centre)[..., None] - self.offset).masked_fill(first, -FAR)
        high = (a * (right - self.centre)[..., None] - self.offset).masked_fill(last, FAR)
        width = (a * (right - left)[..., None]).masked_fill(first | last, FAR)
        weight, uniform = (1.0 - SHARE) * self.log_weight.exp(), SHARE / (levels + 2)
        over_low, under_high = torch.sigmoid(-low), torch.sigmoid(high)
        mass = (weight * (over_low * under_high * -torch.expm1(-width))).sum(-1)
        below = (weight * torch.sigmoid(low)).sum(-1)
        above = (weight * torch.sigmoid(-high)).sum(-1)
        number = level.to(below)  # whole numbers times a number would be float32
        return below + uniform * (number + 1), mass + uniform, above + uniform * (levels - number)

    def invert(self, y: Tensor) -> Tensor:
        """x with value y: the level by bisection, and the place inside of it by formula.

        Nothing is read back, so that a CUDA graph can hold it.
        """
        levels, level = len(self.knots) - 1, torch.zeros_like(y, dtype=torch.int64)
        under, over, negative = torch.sigmoid(y), torch.sigmoid(-y), y < 0
        for step in (2**k for k in reversed(range((levels - 1).bit_length()))):
            higher = (level + step).clamp(max=levels - 1)
            below, mass, above = self.around(higher)  # above: what is over the end of the level
            reached = torch.where(negative, below <= under, above + mass >= over)
            level = torch.where(reached, higher, level)
        below, mass, above = self.around(level)
        share = torch.where(negative, (under - below) / mass, 1.0 - (over - above) / mass)
        end = math.log((levels + 2) / SHARE - 1)
        return (level + share.clamp(0.0, 1.0)) / levels + (y - y.clamp(-end, end))


def place(x: Tensor, knots: Tensor) -> tuple[Tensor, Tensor]:
    """The grey level of pixels x in [0, 1], int64, and the place inside of it, from 0 to 1."""
    levels = len(knots) - 1
    scaled = x * levels
    level = scaled.detach().nan_to_num(0.0).floor().clamp(0, levels - 1)
    return level.long(), scaled - level


def between_knots(x: Tensor, knots: Tensor) -> Tensor:
    """Pixels as the mixture and its network see them: linear between the knots, in [c₀, c_L]."""
    level, share = place(x.clamp(0.0, 1.0), knots)
    return torch.lerp(knots[level], knots[level + 1], share)
