"""A fast path for training classifiers: batch normalization and a Mint layer, values alone.

A classifier's loss asks for no log-determinant, so no slopes are carried. The function computes
what `BatchNorm.transform` and `MintLayer.transform` give as their first result, with these
differences in how:

- convolutions run in ``dtype`` where one is given (bf16 on a GPU), while normalization, its
  statistics and t·x stay in the precision of x;
- activations are channels-last where ``dtype`` is given;
- the function can be compiled, once for each stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.calculus.signs import constrained

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": F.elu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
}
"""h of a Mint layer by its name, values alone."""


def mint_value(
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    biases: tuple[Tensor, Tensor, Tensor],
    masks: tuple[Tensor, Tensor, Tensor],
    t: Tensor,
    channels: int,
    activation: str,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Eq. 2 alone: t ⊙ x + W³ ⊛ h(W² ⊛ h(W¹ ⊛ x + b¹) + b²) + b³, masked and with signs.

    Shapes: (batch, C, H, W) → (batch, C, H, W), of the precision of x.

    Examples:
        >>> from mintnet import MintLayer
        >>> layer = MintLayer(2, 3, (4, 4), activation="tanh")
        >>> x = torch.randn(5, 2, 4, 4)
        >>> y = mint_value(x, *parts_of(layer))
        >>> bool(torch.allclose(y, layer(x)[0], atol=1e-6))
        True
    """
    h = ACTIVATIONS[activation]
    w1, w3 = weights[0] * masks[0], weights[2] * masks[2]
    w2 = constrained(weights[1], w1, w3, channels, masks[1])
    radius = w2.shape[-1] // 2
    u = x
    if dtype is not None:
        w1, w2, w3 = (
            w.to(dtype).contiguous(memory_format=torch.channels_last) for w in (w1, w2, w3)
        )
        u = x.to(dtype).contiguous(memory_format=torch.channels_last)
    u = h(F.conv2d(u, w1, biases[0].to(u.dtype), padding=radius))
    u = h(F.conv2d(u, w2, biases[1].to(u.dtype), padding=radius))
    u = F.conv2d(u, w3, padding=radius)
    return t * x + u.to(x.dtype) + biases[2][:, None, None]


def normalized_mint_value(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    scale: Tensor,
    shift: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    *layer: Any,
) -> Tensor:
    """Batch normalization, then `mint_value` with ``layer`` as its other arguments.

    In training, ``mean`` and ``variance`` are brought up to date in place.
    """
    x = F.batch_norm(x, mean, variance, scale, shift, training, momentum, eps)
    return mint_value(x, *layer)


def parts_of(layer: Any) -> tuple[Any, ...]:
    """The arguments of `mint_value` after x, but for ``dtype``, from a Mint layer."""
    return (
        (layer.weight1, layer.weight2, layer.weight3),
        (layer.bias1, layer.bias2, layer.bias3),
        (layer.mask1, layer.mask2, layer.mask3),
        layer.t,
        layer.channels,
        layer.activation_name,
    )
