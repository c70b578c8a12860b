"""Pixels in [0, 1] to [−1, 1]."""

import math

import torch
from torch import Tensor

from mintnet.bijections.base import EntrywiseBijection


class Rescale(EntrywiseBijection):
    """y = 2x − 1 for each entry.

    Examples:
        >>> Rescale()(torch.tensor([[0.0, 0.5, 1.0]]))[0]
        tensor([[-1.,  0.,  1.]])
    """

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x - 1, torch.full_like(x, math.log(2))

    def invert(self, z: Tensor) -> Tensor:
        return (z + 1) / 2
