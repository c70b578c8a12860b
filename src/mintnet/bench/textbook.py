"""Eq. 2 and Eq. 3 written out directly: what the library is measured against.

Every masked weight is formed and every convolution is dense. The diagonal of the Jacobian is
Σᵢ Σⱼ h'(v²ᵢ) Wᵢⱼ h'(v¹ⱼ) for each entry, with Wᵢⱼ = W³ᵢ W²ᵢⱼ W¹ⱼ, in one of two ways: as the sum of
all K × K products, formed as one tensor, as Eq. 3 is printed; or as two sums, one after the other,
which is what a careful program does and needs no tensor larger than a hidden layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.bijections import MintLayer
from mintnet.models import MintNet


def textbook_evaluator(
    layer: MintLayer, two_sums: bool = False
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """x ↦ (f(x), diag J(x)) of a Mint layer, with its weights formed once.

    Shapes: (batch, C, H, W) → (batch, C, H, W) twice.

    Args:
        layer: a Mint layer.
        two_sums: sum over j, then over i, instead of over all K × K products at once.

    Examples:
        >>> layer, x = MintLayer(2, 3, (4, 4)), torch.randn(5, 2, 4, 4)
        >>> y, slope = textbook_evaluator(layer)(x)
        >>> bool(torch.allclose(slope, layer.evaluate(x)[1], atol=1e-6))
        True
    """
    w1, w2, w3 = layer.weights()
    r, c, k, t = layer.kernel_size // 2, layer.channels, layer.filters, layer.t

    def own(weight: Tensor, out: int, into: int) -> Tensor:  # (C, out, in)
        centre = weight[:, :, r, r].reshape(c, out, c, into)
        return torch.stack([centre[i, :, i] for i in range(c)])

    weights = own(w3, 1, k).mT * own(w2, k, k) * own(w1, k, 1).mT  # (C, K, K)

    def summed(slope1: Tensor, slope2: Tensor) -> Tensor:
        """Over i and j. Shapes: (batch, C, K, H, W) twice → (batch, C, H, W)."""
        if two_sums:
            inner = weights @ slope1.flatten(3)  # B × C × K × HW
            return (slope2 * inner.view_as(slope2)).sum(2)
        # B × C × K × K × H × W
        products = slope2[:, :, :, None] * weights[None, :, :, :, None, None] * slope1[:, :, None]
        return products.sum((2, 3))

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        h1, slope1 = layer.h.value_and_slope(F.conv2d(x, w1, layer.bias1, padding=r))
        h2, slope2 = layer.h.value_and_slope(F.conv2d(h1, w2, layer.bias2, padding=r))
        y = t * x + F.conv2d(h2, w3, layer.bias3, padding=r)
        return y, t + summed(*(slope.unflatten(1, (c, k)) for slope in (slope1, slope2)))

    return evaluate


def textbook_net(net: MintNet, x: Tensor, two_sums: bool = False) -> tuple[Tensor, Tensor]:
    """z and log |det J| of a MintNet. Shapes: (batch, C, H, W) → those of the net, (batch,)."""
    total = x.new_zeros(len(x))
    for part in net.chain.leaves():
        if isinstance(part, MintLayer):
            x, slope = textbook_evaluator(part, two_sums)(x)
            log_det = slope.log().flatten(1).sum(1)
        else:
            x, log_det = part.transform(x)
        total = total + log_det
    return x, total
