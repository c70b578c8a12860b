"""The level schedule: which entries of a triangular system can be solved at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Level:
    """The entries of one level, as a rectangle of A channels by n places, some of them empty.

    Attributes:
        channels: (A,) the channels that have entries here.
        row, column: (A, n) their places.
        valid: (A, n) False where the rectangle holds no entry; the place is then a duplicate of
            a valid one, and what is computed for it is thrown away.
    """

    channels: Tensor
    row: Tensor
    column: Tensor
    valid: Tensor


@lru_cache(maxsize=64)
def levels(shape: tuple[int, int, int], radius: int, upper: bool) -> tuple[Level, ...]:
    """Entries of equal ``(ρ+1)² c + (ρ+1) r + q``, in the order in which they can be solved.

    With kernels of radius ρ every entry depends on entries of lower levels alone, itself aside;
    the upper ordering is the mirror image. For 3 × 3 kernels the level is 4c + 2r + q and
    there are 4(C−1) + 2(H−1) + (W−1) + 1 of them.

    Examples:
        >>> len(levels((1, 28, 28), 1, False)), len(levels((16, 7, 7), 1, True))
        (82, 79)
    """
    channels, height, width = shape
    per_row = radius + 1
    per_channel = per_row**2
    c, r, q = torch.meshgrid(
        torch.arange(channels), torch.arange(height), torch.arange(width), indexing="ij"
    )
    level = (per_channel * c + per_row * r + q).flatten()
    order = torch.sort(level, stable=True).indices  # within a level: by channel, then by row
    counts = torch.bincount(level)
    found = []
    for entries in torch.split(order, counts.tolist()):
        if len(entries):
            found.append(_rectangle(entries, shape, upper))
    return tuple(found)


def _rectangle(entries: Tensor, shape: tuple[int, int, int], upper: bool) -> Level:
    channels, height, width = shape
    c = entries // (height * width)
    present, counts = torch.unique_consecutive(c, return_counts=True)
    n = int(counts.max())
    places = torch.nn.utils.rnn.pad_sequence(
        list(torch.split(entries % (height * width), counts.tolist())),
        batch_first=True,
        padding_value=-1,
    )
    valid = places >= 0
    places = torch.where(valid, places, places[:, :1])
    assert places.shape == (len(present), n)
    row, column = places // width, places % width
    if upper:
        present, row, column = channels - 1 - present, height - 1 - row, width - 1 - column
        # Channels ascend in both orderings, so that slices of weights can be used.
        present, row, column, valid = (part.flip(0) for part in (present, row, column, valid))
    return Level(present, row, column, valid)
