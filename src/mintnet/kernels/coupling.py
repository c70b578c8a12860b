"""A fast path for the couplings between Mint layers: half of the channels, in bf16, compiled.

It computes what `RealNVPCoupling.transform` computes for a centred coupling of channels with a
`HalfNetwork` and the scale "bounded".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def coupling_layer(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    log_gain: Tensor,
    upper: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """y₁ = x₁, y₂ = σ(s(x₁)) ⊙ (x₂ + t(x₁)) with σ = exp(γ + 2 tanh(s / 2)), and Σ log σ.

    Args:
        x: (batch, C, H, W).
        weights: of the three convolutions of its network.
        biases: of the same.
        log_gain: γ, (C / 2,).
        upper: the second half moves the first.
        dtype: of convolutions.

    Shapes: (batch, C, H, W) → (batch, C, H, W), (batch,).
    """
    low, high = x.chunk(2, 1)
    read, moved = (high, low) if upper else (low, high)
    hidden = read.to(dtype).contiguous(memory_format=torch.channels_last)
    for weight, bias in zip(weights, biases, strict=True):
        hidden = F.elu(hidden) if weight is not weights[0] else hidden
        padding = weight.shape[-1] // 2
        hidden = F.conv2d(hidden, weight.to(dtype), bias.to(dtype), padding=padding)
    raw, shift = hidden.float().chunk(2, 1)
    log_scale = log_gain[:, None, None] + 2.0 * torch.tanh(0.5 * raw)
    moved = (moved + shift) * log_scale.exp()
    y = torch.cat([moved, read] if upper else [read, moved], 1)
    return y, log_scale.flatten(1).sum(1)
