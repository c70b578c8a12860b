"""Another shape for the same entries."""

from __future__ import annotations

import math

from torch import Tensor

from mintnet.bijections.base import AnalyticBijection


class Reshape(AnalyticBijection):
    """Samples of one shape as samples of another, in the same order; images as vectors and back.

    Examples:
        >>> import torch
        >>> Reshape((1, 2, 2), (4,))(torch.zeros(3, 1, 2, 2))[0].shape
        torch.Size([3, 4])
    """

    event_shape: tuple[int, ...]
    permutes = True

    def __init__(self, shape: tuple[int, ...], into: tuple[int, ...]) -> None:
        super().__init__()
        if math.prod(shape) != math.prod(into):
            raise ValueError(
                f"samples of shape {tuple(shape)} have {math.prod(shape)} entries and cannot take "
                f"the shape {tuple(into)}, which has {math.prod(into)}"
            )
        self.event_shape, self.into = tuple(shape), tuple(into)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.into

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.reshape(-1, *self.into), x.new_zeros(len(x))

    def invert(self, z: Tensor) -> Tensor:
        return z.reshape(-1, *self.event_shape)

    def extra_repr(self) -> str:
        return f"{self.event_shape}, {self.into}"
