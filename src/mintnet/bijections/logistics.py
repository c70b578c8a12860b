"""Mixtures of logistic distribution functions, one for each entry, and their inverse."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Mixture(NamedTuple):
    r"""x ↦ t·x + logit F(x), F(x) = Σₖ πₖ σ(uₖ), uₖ = aₖ (x − ℓ) − mₖ, for each entry of a sample.

    It increases: components are in units of their own scale 1 / aₖ, and the slope is

        t + f / (F (1 − F)) = t + Σₖ wₖ aₖ σ(−uₖ) + Σₖ vₖ aₖ σ(uₖ)

    with w the softmax of log πₖ + log σ(uₖ) and v that of log πₖ + log σ(−uₖ): a sum of positive
    terms, which holds its relative accuracy where F or 1 − F vanishes. It lies in [t, t + max a];
    logit F lies between the smallest and the largest uₖ, which gives a bracket for the inverse.

    Shapes: ``log_weight``, ``log_slope`` (log a) and ``offset`` (m) have a last axis of components
    behind the shape of x; ``centre`` (ℓ) and ``t`` broadcast to x.

    Examples:
        >>> one = torch.zeros(1, 1)
        >>> m = Mixture(one, one, one, torch.zeros(1), torch.zeros(1))   # one component: y = x
        >>> m.value_and_slope(torch.tensor([3.0]))
        (tensor([3.]), tensor([1.]))
    """

    log_weight: Tensor
    log_slope: Tensor
    offset: Tensor
    centre: Tensor
    t: Tensor

    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """t·x + logit F(x) and its derivative, of the shape of x."""
        a = self.log_slope.exp()
        u = a * (x - self.centre)[..., None] - self.offset
        below = self.log_weight + F.logsigmoid(u)
        above = self.log_weight + F.logsigmoid(-u)
        total_below, total_above = below.logsumexp(-1), above.logsumexp(-1)
        # The softmax of few components is slow on a CPU, and its normalization is known.
        w, v = (below - total_below[..., None]).exp(), (above - total_above[..., None]).exp()
        slope = (a * (w * torch.sigmoid(-u) + v * torch.sigmoid(u))).sum(-1)
        return self.t * x + (total_below - total_above), self.t + slope

    def value(self, x: Tensor) -> Tensor:
        """t·x + logit F(x) alone, with several points of each entry on the last axis of x."""
        a, m = self.log_slope.exp()[..., None], self.offset[..., None]
        u = a * (x - self.centre[..., None])[..., None, :] - m  # (..., components, points)
        weight = self.log_weight.exp()[..., None, :]
        below, above = ((weight @ torch.sigmoid(v))[..., 0, :].log() for v in (u, -u))
        return self.t[..., None] * x + (below - above)

    def bracket(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Ends between which the x with value y lies."""
        a = self.log_slope.exp()
        ends = (y[..., None] + self.offset + a * self.centre[..., None]) / (self.t[..., None] + a)
        return ends.amin(-1), ends.amax(-1)

    def invert(self, y: Tensor, steps: int = 40) -> Tensor:
        """x with value y: Newton's method inside the bracket, halving it where that is slow.

        On a GPU one kernel does this, of Triton. Where that cannot be used, all steps are taken
        there. Nothing is read back, so that a CUDA graph can hold either.
        """
        if y.is_cuda:
            from mintnet.bijections import mixture_kernel  # it imports Triton

            if mixture_kernel.can_invert(self, y):
                return mixture_kernel.invert_on_gpu(self, y)
        low, high = self.bracket(y)
        x = low + (high - low) / 2
        last, eps = torch.full_like(y, float("inf")), torch.finfo(y.dtype).eps
        for step in range(steps):
            value, slope = self.value_and_slope(x)
            excess = value - y
            low, high = torch.where(excess < 0, x, low), torch.where(excess > 0, x, high)
            newton, size = excess / slope, excess.abs()
            candidate = x - newton
            trusted = (candidate >= low) & (candidate <= high) & (size <= 0.5 * last)
            done = size <= 2 * eps * (1 + y.abs())  # as near as rounding of the value allows
            done |= (newton.abs() <= eps * x.abs()) | (high - low <= 2 * eps * x.abs())
            if not x.is_cuda and step % 2 and bool(done.all()):
                break
            x = torch.where(done, x, torch.where(trusted, candidate, low + (high - low) / 2))
            last = size
        return x
