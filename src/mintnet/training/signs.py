"""Steps that do not take the own taps of a Mint layer across 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mintnet.bijections import MintLayer

LEAST = 1e-6
"""How close to 0 a tap is left that wanted to cross it."""


def own_taps(layer: MintLayer) -> list[Tensor]:
    """The taps of W¹ and W³ that give their signs to W² (Eq. 4), as views of the weights.

    Shapes: (K, C) each.

    Examples:
        >>> [tuple(taps.shape) for taps in own_taps(MintLayer(3, 4, (8, 8)))]
        [(4, 3), (4, 3)]
    """
    r, cut = layer.kernel_size // 2, (layer.channels, layer.filters)
    first = layer.weight1.detach().unflatten(0, cut)[..., r, r]  # (C, K, C)
    third = layer.weight3.detach().unflatten(1, cut)[..., r, r]  # (C, C, K)
    return [first.diagonal(dim1=0, dim2=2), third.diagonal(dim1=0, dim2=1)]


@contextmanager
def kept_signs(model: nn.Module) -> Iterator[None]:
    """Inside, weights may be changed, but own taps of Mint layers do not cross 0.

    By Eq. 4 the diagonals of W² have the signs of those of W³ and W¹. Where one of these crosses
    0, a row or column of W² that may be large changes its sign at once: the function jumps, and
    no gradient has told of it. A tap that wants to cross is left beside 0, on its side.

    Examples:
        >>> layer = MintLayer(2, 3, (4, 4))
        >>> signs = own_taps(layer)[0].sign()
        >>> with torch.no_grad(), kept_signs(layer):
        ...     _ = layer.weight1.neg_()
        >>> bool((own_taps(layer)[0].sign() == signs).all())
        True
    """
    taps = [t for part in model.modules() if isinstance(part, MintLayer) for t in own_taps(part)]
    if not taps:
        yield
        return
    before = _joined(taps)
    yield
    after = _joined(taps)
    sides = before.sign()
    after = torch.where(sides * after < 0, LEAST * sides, after)
    for tap, value in zip(taps, after.split([t.numel() for t in taps]), strict=True):
        tap.copy_(value.view(tap.shape))


def _joined(taps: list[Tensor]) -> Tensor:
    return torch.cat([tap.reshape(-1) for tap in taps])
