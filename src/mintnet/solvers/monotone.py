"""The wavefront of layers that are monotone in their own entry, given a deep masked network."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet.calculus.monotone import MonotoneMap
from mintnet.solvers.base import StructureError
from mintnet.solvers.level_cache import LevelCache
from mintnet.solvers.schedule import schedule


class MonotoneWalk:
    """One pass over the levels: every activation of the network is computed once, at any depth.

    With strict first convolutions, all that the network gives on a level follows from earlier
    levels; what is left is one increasing equation for each entry, which the map inverts.
    """

    def __init__(self, function: MonotoneMap, z: Tensor) -> None:
        convolutions = function.convolutions()
        if convolutions is None or z.dim() != 4:
            raise StructureError(
                f"{function} does not say how its network can be walked level by level. Use "
                "FixedPoint or Bisection."
            )
        radius = max(linear.weight.shape[-1] // 2 for linear in convolutions)
        shape = (z.shape[1], z.shape[2], z.shape[3])
        self.function = function
        self.schedule = schedule(shape, radius, function.ordering.upper, function.ordering.name)
        self.caches = [LevelCache(linear, self.schedule, z) for linear in convolutions]

    def run(self, z: Tensor) -> tuple[Tensor, int]:
        """x with f(x) = z, and the number of levels."""
        batch, flat = len(z), z.flatten(1).T  # rows of B samples
        x = torch.zeros_like(flat)
        first = [cache for cache in self.caches if not bool(cache.diagonal.any())]
        for number, level in enumerate(self.schedule.levels):

            def convolve(index: int, value: Tensor | None, number: int = number) -> Tensor:
                """Convolution ``index`` on this level; None stands for x, not known yet."""
                cache, level = self.caches[index], self.schedule.levels[number]
                known = cache.known_part(number, level)
                if value is None:
                    return known
                cache.keep(value, number, level)
                return torch.baddbmm(known, cache.diagonal[level.channels], value)

            entries = level.entries.to(z.device)
            target = flat[entries.flatten()].reshape(len(entries), -1)
            found = self.function.solve_level(convolve, target, level.channels)
            x[entries.flatten()] = found.reshape(-1, batch)
            for cache in first:
                cache.keep(found[:, None], number, level)
        return x.T.reshape(z.shape), len(self.schedule.levels)
