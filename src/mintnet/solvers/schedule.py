"""The level schedule: which entries of a triangular system can be solved at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mintnet.calculus.masks import conv_mask


def level_of(
    shape: tuple[int, int, int], radius: int, upper: bool = False, order: str = "raster"
) -> Tensor:
    """The level ``(ρ+1)² c + (ρ+1) r + q`` of each entry, for kernels of radius ρ.

    Every entry depends on entries of lower levels alone, itself aside; the upper ordering is the
    mirror image. For 3 × 3 kernels the level is 4c + 2r + q. In the pixel order, where an entry
    sees all channels of earlier pixels, it is ``C ((ρ+1) r + q) + c``. Kernels of one tap see
    other channels of the same pixel alone, and the level is c. Shape: (C, H, W).

    Examples:
        >>> level_of((1, 2, 3), radius=1)
        tensor([[[0, 1, 2],
                 [2, 3, 4]]])
        >>> 1 + int(level_of((1, 28, 28), 1).max()), 1 + int(level_of((16, 7, 7), 1).max())
        (82, 79)
    """
    c, place = torch.arange(shape[0])[:, None, None], front_of((shape[1], shape[2]), radius)
    if order == "pixel":
        level = shape[0] * place + c
    else:
        level = ((radius + 1) ** 2 if radius else 1) * c + place
    return level.flip(0, 1, 2) if upper else level


def front_of(size: tuple[int, int], radius: int) -> Tensor:
    """The front ``(ρ+1) r + q`` of each pixel: it depends on pixels of lower fronts alone.

    Shape: (H, W).

    Examples:
        >>> 1 + int(front_of((32, 32), radius=1).max())
        94
    """
    r, q = (torch.arange(length) for length in size)
    front = (radius + 1) * r[:, None] + q
    return front if radius else torch.zeros_like(front)


@dataclass(frozen=True, eq=False)
class Level:
    """The entries of one level: a rectangle of A channels by n places, some of them repeated.

    Channels that are busy on the same level are neighbours, so that slices of weights serve.

    Attributes:
        channels: the A channels, as a slice.
        seen: the channels that linear maps may see from here, as a slice.
        places: (A, n) r · W + q of each entry; where a channel has fewer than n entries, its
            first one is repeated.
        entries: (A, n) the same among all D coordinates.
        valid: (A, n) False for repetitions.
        span: where these entries stand among those of all levels, as a slice.
    """

    channels: slice
    seen: slice
    places: Tensor
    entries: Tensor
    valid: Tensor
    span: slice


@dataclass(frozen=True, eq=False)
class Schedule:
    """All levels of a shape, and the places of activations in a padded cache."""

    shape: tuple[int, int, int]
    radius: int
    upper: bool
    order: str
    levels: tuple[Level, ...]

    @property
    def padded(self) -> tuple[int, int]:
        """Height and width of the cache, with a border of zeros."""
        return self.shape[1] + 2 * self.radius, self.shape[2] + 2 * self.radius

    def cache_rows(self, copies: int) -> int:
        """One row for each channel, padded place and copy."""
        return self.shape[0] * self.padded[0] * self.padded[1] * copies

    @lru_cache(maxsize=8)  # noqa: B019 - schedules live as long as the program
    def own_rows(self, copies: int, device: torch.device) -> list[Tensor]:
        """The rows of the cache that belong to the entries of each level, (A, K, n)."""
        rows = []
        for level in self.levels:
            channels = torch.arange(level.channels.start, level.channels.stop)
            place = self._padded_place(channels[:, None], level.places)
            row = place[:, None, :] * copies + torch.arange(copies)[:, None]
            rows.append(row.to(device))
        return rows

    @lru_cache(maxsize=16)  # noqa: B019
    def patches(self, taps: int, copies: int, device: torch.device) -> list[Patch]:
        """What a kernel of that size sees from each level."""
        mask = conv_mask(self.shape[0], 1, 1, taps, self.upper, self.order, strict=True)
        offset = torch.arange(taps) - taps // 2
        found = []
        for level in self.levels:
            needed = mask[level.channels, level.seen].any(0).flatten().nonzero().flatten()
            channel = torch.arange(level.seen.start, level.seen.stop)[needed // taps**2]
            shift = offset[needed // taps % taps] * self.padded[1] + offset[needed % taps]
            base = self._padded_place(channel[:, None, None], level.places)  # (taps', A, n)
            place = (base + shift[:, None, None]).transpose(0, 1)  # (A, taps', n)
            rows = place[:, :, None, :] * copies + torch.arange(copies)[:, None]
            columns = needed[:, None] * copies + torch.arange(copies)
            found.append(
                Patch(rows.flatten().to(device, torch.int32), columns.flatten().to(device))
            )
        return found

    def _padded_place(self, channels: Tensor, places: Tensor) -> Tensor:
        height, width = self.padded
        row, column = places // self.shape[2], places % self.shape[2]
        return (channels * height + row + self.radius) * width + column + self.radius


@dataclass(frozen=True)
class Patch:
    """Rows of the cache that the entries of a level see, and the weights' columns for them.

    Attributes:
        rows: (A · T · K · n,) rows of the cache, for T taps that are not masked everywhere.
        columns: (T · K,) their places among the (seen channels, taps, copies) of a weight.
    """

    rows: Tensor
    columns: Tensor


@lru_cache(maxsize=64)
def schedule(
    shape: tuple[int, int, int], radius: int, upper: bool, order: str = "raster"
) -> Schedule:
    """The schedule of a shape, made once.

    Examples:
        >>> len(schedule((1, 28, 28), 1, False).levels)
        82
    """
    level = level_of(shape, radius, upper, order).flatten()
    sorted_entries = torch.sort(level, stable=True).indices  # in a level: by channel, then by row
    found, begin = [], 0
    for entries in torch.split(sorted_entries, torch.bincount(level).tolist()):
        if len(entries):
            found.append(_level(entries, shape, upper, order, begin))
            begin = found[-1].span.stop
    return Schedule(shape, radius, upper, order, tuple(found))


def _level(
    entries: Tensor, shape: tuple[int, int, int], upper: bool, order: str, begin: int
) -> Level:
    pixels = shape[1] * shape[2]
    present, counts = torch.unique_consecutive(entries // pixels, return_counts=True)
    first, last = int(present[0]), int(present[-1])
    assert last - first + 1 == len(present), "channels of a level are neighbours"
    places = torch.nn.utils.rnn.pad_sequence(
        list(torch.split(entries % pixels, counts.tolist())), batch_first=True, padding_value=-1
    )
    valid = places >= 0
    places = torch.where(valid, places, places[:, :1])
    seen = slice(first, shape[0]) if upper else slice(0, last + 1)
    return Level(
        channels=slice(first, last + 1),
        seen=slice(0, shape[0]) if order == "pixel" else seen,
        places=places,
        entries=present[:, None] * pixels + places,
        valid=valid,
        span=slice(begin, begin + places.numel()),
    )
