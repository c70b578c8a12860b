"""Float32 products on half-precision matrix units: a number is the sum of two halves.

True float32 has no matrix units, and half precision ten times the speed of float32 without them.
With x = h + l / 2048, h and l in half precision, three of the four products of two such numbers
give the product of the numbers to about 22 bits; they are summed in float32. What is above 65504
in size becomes infinite, so that this is for values that somebody checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.kernels.mint import gather_taps, scatter_taps, seen_taps

SCALE = 2.0**11
"""Of the lower half: it keeps as many bits as the upper one, and not only what is not too small."""
ALIGNED = 64
"""What hidden widths are padded to a multiple of."""
LARGEST = 2**26
"""The most entries of gathered values at a time."""

Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]


class Halves(NamedTuple):
    """x = high + low / 2048."""

    high: Tensor
    low: Tensor


def halves(x: Tensor) -> Halves:
    """A float32 tensor in two of half precision, of the same shape.

    Examples:
        >>> x = torch.tensor([1 / 3, 1000 / 3])
        >>> high, low = halves(x)
        >>> bool(((high.float() + low.float() / 2048 - x).abs() < 1e-7 * x).all())
        True
    """
    high = x.half()
    return Halves(high, ((x - high) * SCALE).half())


def split_product(a: Halves, b: Halves) -> Tensor:
    """a b, summed in float32. Shapes: (M, L), (L, N) → (M, N).

    Examples:
        >>> a, b = torch.randn(5, 7), torch.randn(7, 3)
        >>> bool(torch.allclose(split_product(halves(a), halves(b)), a @ b, atol=1e-5))
        True
    """
    small = _product(a.low, b.high) + _product(a.high, b.low)
    return torch.add(_product(a.high, b.high), small, alpha=1 / SCALE)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Half-precision factors, float32 sums."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


class SplitMint:
    """Eq. 2 and the diagonal of its Jacobian with W² ⊛ h by `split_product`; slopes to 3 digits.

    All hidden tensors are channels-last with a padded width, convolutions are matrix products:
    taps are gathered before W¹ and W², and scattered after W³.

    Args:
        weights: W¹, W² and W³ as they act.
        biases: b¹, b² and b³.
        product: what mixes slopes, (C, K, K).
        t: of the layer.
        h: v ↦ h(v), h'(v).
        upper: the ordering of the layer.
    """

    def __init__(
        self,
        weights: tuple[Tensor, Tensor, Tensor],
        biases: tuple[Tensor, Tensor, Tensor],
        product: Tensor,
        t: Tensor,
        h: Slopes,
        upper: bool,
    ) -> None:
        w1, w2, w3 = weights
        self.channels, self.filters = product.shape[:2]
        self.size, self.t, self.h = w2.shape[-1], t, h
        self.taps = seen_taps(self.channels, self.size, upper)
        seen = slice(self.taps[0], self.taps[-1] + 1)
        dead = -w2.shape[0] % ALIGNED
        first, second, third = (w.flatten(2)[..., seen] for w in (w1, w2, w3))  # (out, in, T)
        first = F.pad(first, (0, 0, 0, 0, 0, dead)).permute(2, 1, 0).flatten(0, 1)
        second = F.pad(second, (0, 0, 0, dead, 0, dead)).permute(2, 1, 0).flatten(0, 1)
        third = F.pad(third, (0, 0, 0, dead)).permute(1, 2, 0).flatten(1)
        self.first, self.third = first.contiguous(), third.contiguous()
        self.second = halves(second.contiguous())
        self.bias1, self.bias2 = (F.pad(bias, (0, dead)) for bias in biases[:2])
        self.bias3 = biases[2][:, None, None]
        mixing = torch.block_diag(*product.mT.unbind(0))
        self.mixing = F.pad(mixing, (0, dead, 0, dead)).half()

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x) and diag J(x). Shapes: (batch, C, H, W) → (batch, C, H, W), twice."""
        gathered = x.numel() // self.channels * len(self.taps) * len(self.bias1)
        parts = x.chunk(-(-gathered // LARGEST))
        sums, slopes = zip(*(self._part(part.permute(0, 2, 3, 1)) for part in parts), strict=True)
        y = self.t * x + torch.cat(sums).permute(0, 3, 1, 2) + self.bias3
        return y, self.t + torch.cat(slopes).permute(0, 3, 1, 2)

    def _part(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Σ W³ h² and the slopes without t. Shapes: (batch, H, W, C), twice."""
        h1, d1 = self.h(gather_taps(x, self.taps, self.size) @ self.first + self.bias1)
        a, b = (gather_taps(half, self.taps, self.size).flatten(0, 2) for half in halves(h1))
        v2 = split_product(Halves(a, b), self.second) + self.bias2
        h2, d2 = self.h(v2.unflatten(0, h1.shape[:3]))
        brought = (h2 @ self.third).unflatten(-1, (len(self.taps), self.channels))
        terms = d2 * (d1.half() @ self.mixing)
        copies = terms[..., : self.channels * self.filters]
        slope = copies.unflatten(-1, (self.channels, self.filters)).sum(-1)
        return scatter_taps(brought, self.taps, self.size), slope
