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
    weights = layer.weight1.detach(), layer.weight3.detach()
    return [own(weight[None], layer.channels)[0] for own, weight in zip(OWN, weights, strict=True)]


def own_of_first(weights: Tensor, channels: int) -> Tensor:
    """Own taps of W¹ of layers of one shape: (L, CK, C, R, R) → (L, K, C), a view."""
    r = weights.shape[-1] // 2
    taps: Tensor = weights[..., r, r].unflatten(1, (channels, -1))  # (L, C, K, C)
    return taps.diagonal(dim1=1, dim2=3)


def own_of_third(weights: Tensor, channels: int) -> Tensor:
    """Own taps of W³ of layers of one shape: (L, C, CK, R, R) → (L, K, C), a view."""
    r = weights.shape[-1] // 2
    taps: Tensor = weights[..., r, r].unflatten(2, (channels, -1))  # (L, C, C, K)
    return taps.diagonal(dim1=1, dim2=2)


OWN = own_of_first, own_of_third


@contextmanager
def kept_signs(model: nn.Module) -> Iterator[None]:
    """Inside, weights may be changed, but own taps of Mint layers do not cross 0.

    By Eq. 4 the diagonals of W² have the signs of those of W³ and W¹. Where one of these crosses
    0, a row or column of W² that may be large changes its sign at once: the function jumps, and
    no gradient has told of it. A tap that wants to cross is left beside 0, on its side.

    Layers of one shape are seen to together, since a step on a GPU is limited by the number of
    its kernels; W¹ and W³ are small.

    Examples:
        >>> layer = MintLayer(2, 3, (4, 4))
        >>> signs = own_taps(layer)[0].sign()
        >>> with torch.no_grad(), kept_signs(layer):
        ...     _ = layer.weight1.neg_()
        >>> bool((own_taps(layer)[0].sign() == signs).all())
        True
    """
    alike: dict[tuple[object, ...], list[MintLayer]] = {}
    for part in model.modules():
        if isinstance(part, MintLayer):
            key = (part.weight1.shape, part.weight1.dtype, part.weight1.device)
            alike.setdefault(key, []).append(part)
    stacks = [
        (own, layers[0].channels, [weight.detach() for weight in weights])
        for layers in alike.values()
        for own, weights in zip(
            OWN,
            ([layer.weight1 for layer in layers], [layer.weight3 for layer in layers]),
            strict=True,
        )
    ]
    sides = [own(torch.stack(weights), channels).sign() for own, channels, weights in stacks]
    yield
    for (own, channels, weights), side in zip(stacks, sides, strict=True):
        together = torch.stack(weights)
        taps = own(together, channels)
        taps.copy_(torch.where(side * taps < 0, LEAST * side, taps))
        torch._foreach_copy_(weights, list(together.unbind()))
