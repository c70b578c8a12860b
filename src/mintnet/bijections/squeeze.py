"""Squeezing: resolution into channels."""

from __future__ import annotations

from torch import Tensor

from mintnet.bijections.base import AnalyticBijection
from mintnet.calculus.masks import check_positive


class Squeeze(AnalyticBijection):
    """Each k × k block of pixels becomes k² channels at a k-th of the resolution.

    Channel c at row offset a and column offset b goes to channel (k·a + b)·C + c. The Jacobian is
    a permutation, so the log-determinant is 0.

    Shapes: (batch, C, H, W) → (batch, k²·C, H/k, W/k).

    Examples:
        >>> import torch
        >>> Squeeze(2, (1, 2, 2))(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))[0].flatten().tolist()
        [1.0, 2.0, 3.0, 4.0]
    """

    event_shape: tuple[int, int, int]
    permutes = True

    def __init__(self, factor: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        check_positive(factor=factor)
        if shape[1] % factor or shape[2] % factor:
            raise ValueError(
                f"cannot squeeze {shape[1]}×{shape[2]} pixels by {factor}: height and width must "
                f"be multiples of {factor}"
            )
        self.factor = factor
        self.event_shape = (shape[0], shape[1], shape[2])

    @property
    def output_shape(self) -> tuple[int, int, int]:
        c, h, w = self.event_shape
        return c * self.factor**2, h // self.factor, w // self.factor

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, (c, h, w) = self.factor, self.event_shape
        blocks = x.reshape(-1, c, h // k, k, w // k, k).permute(0, 3, 5, 1, 2, 4)
        return blocks.reshape(-1, *self.output_shape), x.new_zeros(len(x))

    def invert(self, z: Tensor) -> Tensor:
        k, (c, h, w) = self.factor, self.event_shape
        blocks = z.reshape(-1, k, k, c, h // k, w // k).permute(0, 3, 4, 1, 5, 2)
        return blocks.reshape(-1, c, h, w)

    def extra_repr(self) -> str:
        return f"{self.factor}, {self.event_shape}"
