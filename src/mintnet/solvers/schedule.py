"""The level schedule: which entries of a triangular system can be solved at the same time.

Arrays of a level are laid out (A, K, n·B): its channels, copies of each, places times samples.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mintnet.calculus.linear import Convolution, LinearMap
from mintnet.calculus.masks import conv_mask


def level_of(
    shape: tuple[int, int, int], radius: int, upper: bool = False, order: str = "raster"
) -> Tensor:
    """The level ``(ρ+1)² c + (ρ+1) r + q`` of each entry, for kernels of radius ρ.

    Every entry depends on entries of lower levels alone, itself aside; the upper ordering is the
    mirror image. For 3 × 3 kernels it is 4c + 2r + q, for kernels of one tap c. In the pixel order,
    where all channels of earlier pixels are seen, it is ``C ((ρ+1) r + q) + c``. Shape: (C, H, W).

    Examples:
        >>> level_of((1, 2, 3), radius=1).tolist()
        [[[0, 1, 2], [2, 3, 4]]]
        >>> 1 + int(level_of((1, 28, 28), 1).max())
        82
    """
    c, r, q = (torch.arange(length) for length in shape)
    front = ((radius + 1) * r[:, None] + q) * (radius > 0)  # sees pixels of lower fronts alone
    own = c[:, None, None]
    reach = (radius + 1) ** 2 if radius else 1
    level = shape[0] * front + own if order == "pixel" else reach * own + front
    return level.flip(0, 1, 2) if upper else level


@dataclass(frozen=True)
class Level:
    """The entries of one level: a rectangle of A channels by n places, some of them repeated."""

    channels: slice  # those that are busy on one level are neighbours
    seen: slice  # the channels that linear maps may see from here
    places: Tensor  # (A, n) r · W + q; a channel of fewer entries repeats its first one


@dataclass(frozen=True, eq=False)
class Schedule:
    """All levels of a shape, and the places of activations in a cache padded with zeros."""

    shape: tuple[int, int, int]
    radius: int
    upper: bool
    order: str
    levels: tuple[Level, ...]

    @property
    def padded(self) -> tuple[int, int]:
        return self.shape[1] + 2 * self.radius, self.shape[2] + 2 * self.radius

    @lru_cache(maxsize=32)  # noqa: B019 - schedules live as long as the program
    def entries(self, device: torch.device, members: int = 1) -> list[Tensor]:
        """Of each level, (A · members, n), where so many channels form one group of the shape."""
        pixels, found = self.shape[1] * self.shape[2], []
        for level in self.levels:
            channels = torch.arange(level.channels.start * members, level.channels.stop * members)
            places = level.places.repeat_interleave(members, 0)
            found.append((channels[:, None] * pixels + places).to(device))
        return found

    @lru_cache(maxsize=32)  # noqa: B019
    def own_rows(self, copies: int, device: torch.device) -> list[Tensor]:
        """The rows of the cache that belong to the entries of each level, (A · K · n,)."""
        rows = []
        for level in self.levels:
            channels = torch.arange(level.channels.start, level.channels.stop)
            place = self._padded_place(channels[:, None], level.places)
            row = place[:, None, :] * copies + torch.arange(copies)[:, None]
            rows.append(row.flatten().to(device))
        return rows

    @lru_cache(maxsize=32)  # noqa: B019
    def patches(self, taps: int, copies: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """What a kernel of that size sees from each level, by T taps that are not all masked.

        Rows of the cache, (A · T · K · n,), and the places of the weights for them among the
        (seen channels, taps, copies) of a weight, (T · K,).
        """
        mask = conv_mask(self.shape[0], 1, 1, taps, self.upper, self.order, strict=True)
        offset, found = torch.arange(taps) - taps // 2, []
        for level in self.levels:
            needed = mask[level.channels, level.seen].any(0).flatten().nonzero().flatten()
            channel = torch.arange(level.seen.start, level.seen.stop)[needed // taps**2]
            shift = offset[needed // taps % taps] * self.padded[1] + offset[needed % taps]
            base = self._padded_place(channel[:, None, None], level.places)  # (T, A, n)
            place = (base + shift[:, None, None]).transpose(0, 1)  # (A, T, n)
            rows = place[:, :, None, :] * copies + torch.arange(copies)[:, None]
            columns = needed[:, None] * copies + torch.arange(copies)
            found.append((rows.flatten().to(device, torch.int32), columns.flatten().to(device)))
        return found

    def _padded_place(self, channels: Tensor, places: Tensor) -> Tensor:
        height, width = self.padded
        row, column = places // self.shape[2], places % self.shape[2]
        return (channels * height + row + self.radius) * width + column + self.radius


@lru_cache(maxsize=64)
def schedule(
    shape: tuple[int, int, int], radius: int, upper: bool, order: str = "raster"
) -> Schedule:
    """The schedule of a shape, made once."""
    level, pixels = level_of(shape, radius, upper, order).flatten(), shape[1] * shape[2]
    sorted_entries = torch.sort(level, stable=True).indices  # in a level: by channel, then by row
    levels = []
    for entries in torch.split(sorted_entries, torch.bincount(level).tolist()):
        if not len(entries):
            continue
        present, counts = torch.unique_consecutive(entries // pixels, return_counts=True)
        first, last = int(present[0]), int(present[-1])
        assert last - first + 1 == len(present), "channels of a level are neighbours"
        rows = torch.split(entries % pixels, counts.tolist())
        places = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=-1)
        places = torch.where(places >= 0, places, places[:, :1])
        seen = slice(first, shape[0]) if upper else slice(0, last + 1)
        seen = slice(0, shape[0]) if order == "pixel" else seen
        levels.append(Level(slice(first, last + 1), seen, places))
    return Schedule(shape, radius, upper, order, tuple(levels))


class LevelCache:
    """A linear map evaluated level by level for one batch, its inputs of earlier levels kept."""

    def __init__(self, linear: LinearMap, schedule: Schedule, like: Tensor) -> None:
        groups, (height, width) = schedule.shape[0], schedule.padded
        self.schedule, self.batch, self.device = schedule, len(like), like.device
        self.copies_in = linear.weight.shape[1] // groups
        self.taps = linear.weight.shape[-1] if isinstance(linear, Convolution) else 1
        dense, (weight, diagonal, bias) = torch.contiguous_format, _laid_out(linear, groups)
        self.weight = weight.clone(memory_format=dense)  # copies, which `load` writes into
        self.diagonal = diagonal.clone(memory_format=dense)
        self.bias = None if bias is None else bias.clone(memory_format=dense)
        # A row of B samples for each channel, place of the padded image, and copy.
        self.rows = like.new_zeros(groups * height * width * self.copies_in, self.batch)
        # Held here, since a captured graph goes on reading them when the schedule has let them go.
        self.entries = schedule.entries(self.device)
        self.own_rows = schedule.own_rows(self.copies_in, self.device)
        self.patches = schedule.patches(self.taps, self.copies_in, self.device)
        self._columns: dict[tuple[int, int], Tensor] = {}

    def clear(self) -> None:
        """Forget what was kept, and what was laid out of the weights."""
        self.rows.zero_()
        self._columns = {}

    def load(self, linear: LinearMap) -> None:
        """Other weights of the same shape, in the same memory."""
        mine = (self.weight, self.diagonal, self.bias)
        for place, part in zip(mine, _laid_out(linear, self.schedule.shape[0]), strict=True):
            if place is not None and part is not None:
                place.copy_(part)

    def known_part(self, number: int) -> Tensor:
        """The bias and what earlier levels contribute to a level, (A, K_out, n·B)."""
        level, (rows, columns) = self.schedule.levels[number], self.patches[number]
        key = (level.channels.start, level.channels.stop)
        if key not in self._columns:  # the weights of these channels, (A, K_out, T·K_in)
            part = self.weight[level.channels, :, level.seen].flatten(2)
            self._columns[key] = part.index_select(2, columns)
        count, places = level.places.shape
        seen = self.rows.index_select(0, rows)
        known = self._columns[key] @ seen.reshape(count, len(columns), places * self.batch)
        if self.bias is None:
            return known
        bias = self.bias[level.channels]
        if (size := bias.shape[2]) > 1:
            at = self.entries[number][:, None] % size
            bias = bias.gather(2, at.expand(-1, bias.shape[1], -1)).repeat_interleave(self.batch, 2)
        return known + bias

    def keep(self, value: Tensor, number: int) -> None:
        """Write the input of a level, (A, K_in, n·B), to where later levels look for it."""
        self.rows.index_copy_(0, self.own_rows[number], value.reshape(-1, self.batch))


def _laid_out(linear: LinearMap, groups: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Views of a linear map: weight (C, K_out, C, taps, K_in), diagonal (C, K_out, K_in), bias.

    The diagonal has the weights between copies of an entry's own coordinate; the bias is
    (C, K_out, 1), or (C, K_out, H · W) where each place has its own, or None.
    """
    out, into = (size // groups for size in linear.weight.shape[:2])
    weight = linear.weight.reshape(groups, out, groups, into, -1).transpose(3, 4)
    bias = None if linear.bias is None else linear.bias.reshape(groups, out, -1)
    return weight, linear.diagonal(), bias
