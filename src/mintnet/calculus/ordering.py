"""Orderings of the coordinates: the sense in which a Jacobian is triangular."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class OrderingError(ValueError):
    """Two orderings met inside one value, where only one can hold."""


@dataclass(frozen=True)
class Ordering:
    r"""A total order of the coordinates of one sample.

    In the *raster* order an image is read channel by channel, row by row, column by column; a
    vector is read from its first entry to its last. ``upper`` reads it backwards. A map is
    triangular in an ordering when each output entry depends only on input entries of the same
    rank or earlier.

    Examples:
        >>> LOWER.rank((2, 1, 3)).flatten().tolist()
        [0, 1, 2, 3, 4, 5]
        >>> UPPER.rank((2, 1, 3)).flatten().tolist()
        [5, 4, 3, 2, 1, 0]
    """

    upper: bool = False
    name: str = "raster"

    def rank(self, shape: tuple[int, ...]) -> Tensor:
        """The position of every coordinate in this order, an integer tensor of ``shape``."""
        rank = torch.arange(torch.Size(shape).numel()).reshape(shape)
        return rank.max() - rank if self.upper else rank

    def __str__(self) -> str:
        return f"{'upper' if self.upper else 'lower'} {self.name} ordering"


LOWER = Ordering(upper=False)
UPPER = Ordering(upper=True)


def common(first: Ordering | None, second: Ordering | None) -> Ordering | None:
    """The ordering of a combination; ``None`` (a diagonal Jacobian) agrees with every ordering.

    Examples:
        >>> common(None, LOWER)
        Ordering(upper=False, name='raster')
        >>> common(LOWER, UPPER)
        Traceback (most recent call last):
        mintnet.calculus.ordering.OrderingError: one value cannot be both in the lower raster ordering and in the upper raster ordering: its Jacobian would not be triangular. Let the two meet in a Chain of bijections instead.
    """  # noqa: E501
    if first is None or second is None or first == second:
        return first if second is None else second
    raise OrderingError(
        f"one value cannot be both in the {first} and in the {second}: its Jacobian would not "
        "be triangular. Let the two meet in a Chain of bijections instead."
    )
