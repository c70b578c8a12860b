"""Eq. 2 and Eq. 3 written out directly: what the library is measured against.

Every masked weight is formed, every convolution is dense, and the diagonal of the Jacobian is
the sum over all K × K products of Eq. 3, formed as one tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet import MintLayer, MintNet


def textbook_layer(layer: MintLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and diag J(x) of a Mint layer with ELU."""
    w1, w2, w3 = layer.weights()
    r, c, k = layer.kernel_size // 2, layer.channels, layer.filters
    batch, (_, height, width) = len(x), layer.event_shape
    v1 = F.conv2d(x, w1, layer.bias1, padding=r)
    v2 = F.conv2d(F.elu(v1), w2, layer.bias2, padding=r)
    y = layer.t * x + F.conv2d(F.elu(v2), w3, layer.bias3, padding=r)

    def own(weight: Tensor, out: int, into: int) -> Tensor:  # (C, out, in)
        centre = weight[:, :, r, r].reshape(c, out, c, into)
        return torch.stack([centre[i, :, i] for i in range(c)])

    slope1 = torch.where(v1 > 0, torch.ones_like(v1), v1.exp()).reshape(
        batch, c, 1, k, height, width
    )
    slope2 = torch.where(v2 > 0, torch.ones_like(v2), v2.exp()).reshape(
        batch, c, k, 1, height, width
    )
    weights = own(w3, 1, k).mT * own(w2, k, k) * own(w1, k, 1).mT  # (C, K, K)
    products = slope2 * weights[None, :, :, :, None, None] * slope1  # B × C × K × K × H × W
    return y, layer.t + products.sum((2, 3))


def textbook_net(net: MintNet, x: Tensor) -> tuple[Tensor, Tensor]:
    """z and log |det J| of a MintNet."""
    total = x.new_zeros(len(x))
    for part in net.chain.leaves():
        if isinstance(part, MintLayer):
            x, slope = textbook_layer(part, x)
            total = total + slope.log().flatten(1).sum(1)
        else:
            x, _ = part.transform(x)
    return x, total
