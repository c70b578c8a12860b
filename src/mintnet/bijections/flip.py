"""Reversal of the coordinates."""

from __future__ import annotations

from torch import Tensor

from mintnet.bijections.base import AnalyticBijection


class Flip(AnalyticBijection):
    """Reverse all axes of a sample, which turns a lower triangular map into an upper one.

    Examples:
        >>> import torch
        >>> Flip()(torch.tensor([[1.0, 2.0, 3.0]]))[0]
        tensor([[3., 2., 1.]])
    """

    permutes = True

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.invert(x), x.new_zeros(len(x))

    def invert(self, z: Tensor) -> Tensor:
        return z.flip(tuple(range(1, z.dim())))
