"""Eq. 2 and Eq. 3 written out directly: what the library is measured against.

Every masked weight is formed, every convolution is dense, and the diagonal of the Jacobian is
the sum over all K × K products of Eq. 3, formed as one tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.bijections import MintLayer
from mintnet.models import MintNet


def textbook_evaluator(layer: MintLayer) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """x ↦ (f(x), diag J(x)) of a Mint layer, with its weights formed once.

    Shapes: (batch, C, H, W) → (batch, C, H, W) twice.

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

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        batch, _, height, width = x.shape
        h1, slope1 = layer.h.value_and_slope(F.conv2d(x, w1, layer.bias1, padding=r))
        h2, slope2 = layer.h.value_and_slope(F.conv2d(h1, w2, layer.bias2, padding=r))
        y = t * x + F.conv2d(h2, w3, layer.bias3, padding=r)
        slope1 = slope1.reshape(batch, c, 1, k, height, width)
        slope2 = slope2.reshape(batch, c, k, 1, height, width)
        products = slope2 * weights[None, :, :, :, None, None] * slope1  # B × C × K × K × H × W
        return y, t + products.sum((2, 3))

    return evaluate


def textbook_net(net: MintNet, x: Tensor) -> tuple[Tensor, Tensor]:
    """z and log |det J| of a MintNet. Shapes: (batch, C, H, W) → those of the net, (batch,)."""
    total = x.new_zeros(len(x))
    for part in net.chain.leaves():
        if isinstance(part, MintLayer):
            x, slope = textbook_evaluator(part)(x)
            total = total + slope.log().flatten(1).sum(1)
        else:
            x, _ = part.transform(x)
    return x, total
