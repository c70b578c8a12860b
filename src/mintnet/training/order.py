"""Which images a step sees and how: pure functions of seed, epoch and place.

Nothing here has a state, so a run that is resumed at a step continues as if it had never stopped,
and every process of many works out its own part alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def stream(seed: int, purpose: str) -> int:
    """A seed of its own for each use of a run's seed.

    Examples:
        >>> stream(0, "noise") != stream(0, "flip") != stream(1, "flip")
        True
    """
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def permutation(seed: int, epoch: int, count: int) -> Tensor:
    """The order of an epoch, (count,) int64.

    Examples:
        >>> bool((permutation(1, 0, 9).sort().values == torch.arange(9)).all())
        True
    """
    generator = torch.Generator().manual_seed(stream(seed, f"order {epoch}"))
    return torch.randperm(count, generator=generator)


def held_out(count: int, share: float) -> tuple[Tensor, Tensor]:
    """The places of training images, and of those held out for validation; both ascending.

    The choice does not depend on a run's seed, so that runs can be compared with each other.

    Examples:
        >>> train, validation = held_out(100, 0.05)
        >>> len(train), len(validation)
        (95, 5)
    """
    kept = round(count * share)
    generator = torch.Generator().manual_seed(stream(0, "held out"))
    order = torch.randperm(count, generator=generator)
    return order[kept:].sort().values, order[:kept].sort().values


def part_of(batch: Tensor, rank: int, world: int) -> Tensor:
    """The part of a batch that belongs to one of ``world`` processes; sizes differ by at most 1.

    Examples:
        >>> [part_of(torch.arange(5), rank, 2).tolist() for rank in (0, 1)]
        [[0, 1, 2], [3, 4]]
    """
    return batch.tensor_split(world)[rank]


class Batches:
    """Batches of places, in the form that Lightning takes for a loader (a list means several).

    Examples:
        >>> len(Batches(torch.arange(6).split(2)))
        3
    """

    def __init__(self, batches: Sequence[Tensor]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches)
