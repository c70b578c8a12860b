"""A linear map evaluated level by level, with its inputs of earlier levels kept."""

from __future__ import annotations

from torch import Tensor

from mintnet.calculus.linear import Convolution, LinearMap
from mintnet.solvers.schedule import Level, Schedule


class LevelCache:
    """One linear map of a function that is walked level by level, for one batch.

    Arrays of a level are laid out (A, K, n·B): active channels, copies, places times samples. The
    cache holds a row of B samples for each channel, place of the padded image, and copy.
    """

    def __init__(self, linear: LinearMap, schedule: Schedule, like: Tensor) -> None:
        groups = schedule.shape[0]
        self.schedule, self.batch, self.device = schedule, len(like), like.device
        self.copies_out, self.copies_in = (size // groups for size in linear.weight.shape[:2])
        self.taps = linear.weight.shape[-1] if isinstance(linear, Convolution) else 1
        self.diagonal = linear.diagonal().contiguous()
        """Weights between copies of an entry's own coordinate, (C, K_out, K_in)."""
        self.bias = None if linear.bias is None else linear.bias.reshape(groups, -1, 1)
        weight = linear.weight.reshape(groups, self.copies_out, groups, self.copies_in, -1)
        self.weight = weight.transpose(3, 4).contiguous()  # C, K_out, C, taps, K_in
        self.rows = like.new_zeros(schedule.cache_rows(self.copies_in), self.batch)
        self._columns: dict[tuple[int, int], Tensor] = {}

    def clear(self) -> None:
        """Forget what was kept, and what was laid out of the weights."""
        self.rows.zero_()
        self._columns = {}

    def load(self, linear: LinearMap) -> None:
        """Other weights of the same shape, in the same memory."""
        other = LevelCache(linear, self.schedule, self.rows.new_empty(0, 0))
        self.weight.copy_(other.weight)
        self.diagonal.copy_(other.diagonal)
        if self.bias is not None and other.bias is not None:
            self.bias.copy_(other.bias)

    def known_part(self, number: int, level: Level) -> Tensor:
        """The bias and what earlier levels contribute, (A, K_out, n·B)."""
        patch = self.schedule.patches(self.taps, self.copies_in, self.device)[number]
        seen = self.rows.index_select(0, patch.rows)
        count, places = level.places.shape
        weight = self._weights_of(level, patch.columns)
        known = weight @ seen.reshape(count, len(patch.columns), places * self.batch)
        return known if self.bias is None else known + self.bias[level.channels]

    def keep(self, value: Tensor, number: int, level: Level) -> None:
        """Write the input of a level, (A, K_in, n·B), to where later levels look for it.

        Entries that a level repeats have the same value each time, so that no mask is needed.
        """
        rows = self.schedule.own_rows(value.shape[1], self.device)[number]
        self.rows.index_copy_(0, rows.flatten(), value.reshape(-1, self.batch))

    def _weights_of(self, level: Level, columns: Tensor) -> Tensor:
        """The weights of a level's channels for what they see, (A, K_out, T·K_in)."""
        key = (level.channels.start, level.channels.stop)
        if key not in self._columns:
            part = self.weight[level.channels, :, level.seen].flatten(2)
            self._columns[key] = part.index_select(2, columns)
        return self._columns[key]
