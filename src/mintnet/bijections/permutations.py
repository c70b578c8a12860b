"""Bijections that only put entries in another place: log-determinant 0."""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from mintnet.bijections.base import AnalyticBijection
from mintnet.calculus.masks import check_positive


class Permutation(AnalyticBijection):
    """Outputs are inputs in another order or shape, as `value` and `invert` say."""

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """The entries of x at their new places."""

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.value(x), x.new_zeros(x.shape[0])

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.value(x), torch.zeros_like(x)

    def to_input_order(self, z: Tensor) -> Tensor:
        return self.invert(z)


class Squeeze(Permutation):
    """Each k × k block of pixels becomes k² channels at a k-th of the resolution.

    Channel c at row offset a and column offset b goes to channel (k·a + b)·C + c.
    Shapes: (batch, C, H, W) → (batch, k²·C, H/k, W/k).

    Examples:
        >>> Squeeze(2, (1, 2, 2))(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))[0].flatten().tolist()
        [1.0, 2.0, 3.0, 4.0]
    """

    event_shape: tuple[int, int, int]

    def __init__(self, factor: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        check_positive(factor=factor)
        if shape[1] % factor or shape[2] % factor:
            wanted = f"height and width must be multiples of {factor}"
            raise ValueError(f"cannot squeeze {shape[1]}×{shape[2]} pixels by {factor}: {wanted}")
        self.factor, self.event_shape = factor, (shape[0], shape[1], shape[2])

    @property
    def output_shape(self) -> tuple[int, int, int]:
        c, h, w = self.event_shape
        return c * self.factor**2, h // self.factor, w // self.factor

    def value(self, x: Tensor) -> Tensor:
        k, (c, h, w) = self.factor, self.event_shape
        blocks = x.reshape(-1, c, h // k, k, w // k, k).permute(0, 3, 5, 1, 2, 4)
        return blocks.reshape(-1, *self.output_shape)

    def invert(self, z: Tensor) -> Tensor:
        k, (c, h, w) = self.factor, self.event_shape
        return z.reshape(-1, k, k, c, h // k, w // k).permute(0, 3, 4, 1, 5, 2).reshape(-1, c, h, w)

    def extra_repr(self) -> str:
        return f"{self.factor}, {self.event_shape}"


class Flip(Permutation):
    """Reverse all axes of a sample, which turns a lower triangular map into an upper one.

    With ``axes`` only these: (−1,) gives the mirror image, left for right.

    Examples:
        >>> Flip()(torch.tensor([[1.0, 2.0, 3.0]]))[0]
        tensor([[3., 2., 1.]])
    """

    def __init__(self, axes: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.axes = axes

    def value(self, x: Tensor) -> Tensor:
        return x.flip(tuple(range(1, x.dim())) if self.axes is None else self.axes)

    def extra_repr(self) -> str:
        return "" if self.axes is None else f"axes={self.axes}"

    def invert(self, z: Tensor) -> Tensor:
        return self.value(z)


class Reshape(Permutation):
    """Samples of one shape as samples of another, in the same order; images as vectors and back.

    Examples:
        >>> Reshape((1, 2, 2), (4,))(torch.zeros(3, 1, 2, 2))[0].shape
        torch.Size([3, 4])
    """

    event_shape: tuple[int, ...]

    def __init__(self, shape: tuple[int, ...], into: tuple[int, ...]) -> None:
        super().__init__()
        if math.prod(shape) != math.prod(into):
            counts = f"{math.prod(shape)} entries are not {math.prod(into)}"
            raise ValueError(f"samples of shape {tuple(shape)} cannot take {tuple(into)}: {counts}")
        self.event_shape, self.into = tuple(shape), tuple(into)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.into

    def value(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self.into)

    def invert(self, z: Tensor) -> Tensor:
        return z.reshape(-1, *self.event_shape)

    def extra_repr(self) -> str:
        return f"{self.event_shape}, {self.into}"


class ChannelPermutation(Permutation):
    """Channels in another order: output channel i is input channel ``order[i]``.

    Examples:
        >>> swap = ChannelPermutation(torch.tensor([1, 0]), (2, 1, 1))
        >>> swap(torch.tensor([[[[3.0]], [[4.0]]]]))[0].flatten()
        tensor([4., 3.])
    """

    order: Tensor

    def __init__(self, order: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__()
        if sorted(got := order.tolist()) != list(range(shape[0])):
            raise ValueError(f"expected each of the channels 0 to {shape[0] - 1} once; got {got}")
        self.event_shape = tuple(shape)
        self.register_buffer("order", order.clone())

    def value(self, x: Tensor) -> Tensor:
        return x[:, self.order]

    def invert(self, z: Tensor) -> Tensor:
        return z[:, self.order.argsort()]
