"""The wavefront of maps that solve the equations of a level by themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from mintnet.calculus import Ordering
from mintnet.calculus.linear import LinearMap
from mintnet.graphs import capture, is_capturing
from mintnet.solvers.captured import recent
from mintnet.solvers.schedule import LevelCache, schedule

MOST_WALKS = 16  # captured ones that are kept
_walks: OrderedDict[Hashable, LevelWalk] = OrderedDict()


def walk_levels(function: LevelMap, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, int]:
    """x with f(x) = z, level by level, and the number of levels.

    On a GPU the whole walk is captured as a CUDA graph at the first call, and replayed for all
    layers of the same shape: each call copies its weights and z into the memory of the graph.
    """
    if z.is_cuda and not is_capturing(z):
        convolutions, constants = function.convolutions(), function.constants(context)
        read = (*(linear.weight for linear in convolutions), *constants, z)
        key = (type(function), function.ordering, *(part.shape for part in read), z.dtype, z.device)
        try:
            walk = recent(_walks, key, lambda: LevelWalk(function, z, context), MOST_WALKS)
            return walk.replayed(convolutions, constants, z), walk.depth
        except torch.OutOfMemoryError:
            _walks.clear()  # walks that are kept hold their activations
    walk = LevelWalk(function, z, context)
    return walk.run(), walk.depth


class LevelMap(ABC):
    """A triangular map that solves the equations of one level of its ordering at a time."""

    ordering: Ordering
    members: int = 1  # channels that share one group of activations

    @abstractmethod
    def convolutions(self) -> list[LinearMap]:
        """The masked convolutions (of vectors: matrices) of the map."""

    def constants(self, context: Tensor | None) -> tuple[Tensor, ...]:
        """What `solve_level` needs beside the outputs of the convolutions."""
        return ()

    @abstractmethod
    def solve_level(self, walk: LevelWalk, level: int, target: Tensor) -> Tensor:
        """x of the entries of a level whose images are ``target``, both (A, n·B).

        A level has A channels with n places of B samples each; where channels share one group of
        activations, these are all channels of its pixels. Nothing is read back: a GPU captures it.
        """

    @abstractmethod
    def keep_input(self, walk: LevelWalk, level: int, x: Tensor) -> None:
        """Keep what `convolutions` read of x itself on a level, (A, n·B), for the levels after."""


class LevelWalk:
    """One pass over the levels: every activation of the map is computed once, at any depth.

    With what convolutions see from earlier levels known, the map solves an equation an entry.
    """

    def __init__(self, function: LevelMap, z: Tensor, context: Tensor | None = None) -> None:
        convolutions = function.convolutions()
        channels, height, width = (*z.shape[1:], 1, 1)[:3]  # a vector has one place
        taps, members = max(c.weight.shape[-1] for c in convolutions), function.members
        shape, radius = (channels // members, height, width), taps // 2 if z.dim() == 4 else 0
        self.schedule = schedule(shape, radius, function.ordering.upper, function.ordering.name)
        self.caches = [LevelCache(linear, self.schedule, z) for linear in convolutions]
        self.function, self.z = function, z
        # On the device before the walk: a captured graph cannot read from the host.
        self._entries = self.schedule.entries(z.device, members)
        self.depth, self.constants = len(self._entries), function.constants(context)
        self._replay: Callable[[], Tensor] | None = None

    def run(self) -> Tensor:
        batch, flat = len(self.z), self.z.flatten(1).T  # rows of B samples
        x = torch.zeros_like(flat)
        for cache in self.caches:
            cache.clear()
        for number, entries in enumerate(self._entries):
            found = self.function.solve_level(self, number, flat[entries].flatten(1))
            x[entries] = found.view(*entries.shape, batch)
            self.function.keep_input(self, number, found)
        return x.T.reshape(self.z.shape)

    def channels(self, level: int) -> slice:
        """The groups of channels of the entries of a level."""
        return self.schedule.levels[level].channels

    def entries(self, level: int) -> Tensor:
        """Where the entries of a level stand among all coordinates of a sample, (A, n)."""
        return self._entries[level]

    def known(self, level: int, index: int) -> Tensor:
        """What earlier levels contribute to convolution ``index``, its bias included."""
        return self.caches[index].known_part(level)

    def diagonal(self, index: int) -> Tensor:
        """The weights of convolution ``index`` between copies of one coordinate, (C, out, in)."""
        return self.caches[index].diagonal

    def keep(self, level: int, index: int, value: Tensor) -> None:
        """Keep the input of convolution ``index`` on a level for the levels after it."""
        self.caches[index].keep(value, level)

    def convolve(self, level: int, index: int, value: Tensor | None) -> Tensor:
        """Convolution ``index`` of an input that is kept; None stands for x, not known yet."""
        known = self.known(level, index)
        if value is None:
            return known
        self.keep(level, index, value)
        return torch.baddbmm(known, self.diagonal(index)[self.channels(level)], value)

    def replayed(
        self, convolutions: Sequence[LinearMap], constants: Sequence[Tensor], z: Tensor
    ) -> Tensor:
        """`run` with other weights and another z, by the CUDA graph of this walk."""
        if self._replay is None:
            self.z = self.z.clone()
            self.constants = tuple(constant.clone() for constant in self.constants)
            self._replay = capture(self.run, z.device, warm_ups=1)  # nothing to choose by timing
        self.z.copy_(z)
        for cache, linear in zip(self.caches, convolutions, strict=True):
            cache.load(linear)
        for mine, new in zip(self.constants, constants, strict=True):
            mine.copy_(new)
        return self._replay().clone()
