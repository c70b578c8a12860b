"""Orderings of the coordinates: the sense in which a Jacobian is triangular."""

from dataclasses import dataclass

import torch
from torch import Tensor


class OrderingError(ValueError):
    """Two orderings met inside one value, where only one can hold."""


@dataclass(frozen=True)
class Ordering:
    r"""A total order of the coordinates of one sample.

    A map is triangular in an ordering when each output entry depends only on input entries of
    the same rank or earlier. The names say how an image is read:

        raster         channel by channel, in each row by row, column by column
        pixel          row by row, column by column, at each pixel channel by channel
        row, column    row by row (or column by column), all channels of one together
        checkerboard   the pixels with even row + column, then those with odd

    A vector is read from its first entry to its last; as a checkerboard, its even entries come
    before its odd ones. ``upper`` reads everything backwards.

    Examples:
        >>> LOWER.rank((2, 1, 3)).flatten().tolist()
        [0, 1, 2, 3, 4, 5]
        >>> UPPER.rank((2, 1, 3)).flatten().tolist()
        [5, 4, 3, 2, 1, 0]
    """

    upper: bool = False
    name: str = "raster"

    def __post_init__(self) -> None:
        if self.name not in ORDERS:
            raise ValueError(f"unknown ordering {self.name!r}; choose one of {', '.join(ORDERS)}")

    def rank(self, shape: tuple[int, ...]) -> Tensor:
        """The position of every coordinate in this order, an integer tensor of ``shape``."""
        rank = torch.arange(torch.Size(shape).numel()).reshape(shape)
        if self.name == "checkerboard":
            rank = rank + checkerboard(shape) * rank.numel()
            rank = rank.flatten().argsort().argsort().reshape(shape)
        elif self.name in AXES and len(shape) == 3:
            axes = AXES[self.name]
            read = torch.arange(rank.numel()).reshape([shape[axis] for axis in axes])
            rank = read.permute([axes.index(axis) for axis in range(3)])
        return rank.max() - rank if self.upper else rank

    def __str__(self) -> str:
        return f"{'upper' if self.upper else 'lower'} {self.name} ordering"


# The axes (channel, row, column) from the slowest to the fastest.
AXES = {"pixel": (1, 2, 0), "row": (1, 0, 2), "column": (2, 0, 1)}
ORDERS = ("raster", *AXES, "checkerboard")


def checkerboard(shape: tuple[int, ...]) -> Tensor:
    """The parity of row + column, or of a vector's index: 0 or 1, broadcasts to ``shape``."""
    if len(shape) == 1:
        return torch.arange(shape[0]) % 2
    row, column = torch.arange(shape[-2]), torch.arange(shape[-1])
    return ((row[:, None] + column) % 2).expand(1, -1, -1).clone()


LOWER, UPPER = Ordering(upper=False), Ordering(upper=True)


def common(first: Ordering | None, second: Ordering | None) -> Ordering | None:
    """The ordering of a combination; ``None`` (a diagonal Jacobian) agrees with every ordering."""
    if first is None or second is None or first == second:
        return first if second is None else second
    fault = f"both in the {first} and in the {second}: its Jacobian would not be triangular"
    raise OrderingError(f"one value cannot be {fault}. Let the two meet in a Chain of bijections.")
