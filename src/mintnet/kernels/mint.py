"""A fast path for training on a GPU: the Mint layer in bf16, aligned and compiled.

It computes what `MintLayer.transform` computes, with these differences in how:

- activations are channels-last, and the hidden width is padded with dead channels to a multiple
  of 64, which the matrix units want;
- convolutions and slope mixing run in ``dtype`` (bf16), while t·x, the sums of slopes, their
  logarithm and the log-determinant stay in float32;
- slopes are mixed by one matrix product with a block-diagonal matrix;
- the function is compiled, once for each stage.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.calculus.signs import constrained

ALIGNMENT = 64


def mint_layer(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    weight3: Tensor,
    bias1: Tensor,
    bias2: Tensor,
    bias3: Tensor,
    t: Tensor,
    mask1: Tensor,
    mask2: Tensor,
    mask3: Tensor,
    channels: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Eq. 2 for ELU and the logarithm of the diagonal of its Jacobian, summed."""
    w1, w3 = weight1 * mask1, weight3 * mask3
    w2 = constrained(weight2 * mask2, w1, w3, channels)
    width = w2.shape[0]
    dead = -width % ALIGNMENT
    radius = w2.shape[-1] // 2
    # diag(W³ᵢ) diag(W²ᵢⱼ) diag(W¹ⱼ) as one block-diagonal matrix, 0 between channels.
    own1, own3 = _own(w1[:, :, radius, radius].mT), _own(w3[:, :, radius, radius])
    group = torch.arange(width, device=x.device) // (width // channels)
    same = group[:, None] == group[None, :]
    product = torch.where(same, own3[:, None] * w2[:, :, radius, radius] * own1[None, :], 0.0)

    def padded(weight: Tensor, out: int, into: int) -> Tensor:
        weight = F.pad(weight, (0, 0, 0, 0, 0, into, 0, out)).to(dtype)
        return weight.contiguous(memory_format=torch.channels_last)

    x = x.contiguous(memory_format=torch.channels_last)
    b1, b2 = (F.pad(bias, (0, dead)).to(dtype) for bias in (bias1, bias2))
    v1 = F.conv2d(x.to(dtype), padded(w1, dead, 0), b1, padding=radius)
    v2 = F.conv2d(F.elu(v1), padded(w2, dead, dead), b2, padding=radius)
    y = t * x + F.conv2d(F.elu(v2), padded(w3, 0, dead), padding=radius) + bias3[:, None, None]
    d1, d2 = v1.clamp(max=0).exp(), v2.clamp(max=0).exp()
    mixed = d1.permute(0, 2, 3, 1) @ F.pad(product, (0, dead, 0, dead)).to(dtype).mT
    terms = (d2.permute(0, 2, 3, 1).float() * mixed.float())[..., :width]
    slope = terms.unflatten(-1, (channels, width // channels)).sum(-1)  # (B, H, W, C)
    log_det = (t.permute(1, 2, 0) + slope).log().flatten(1).sum(1)
    return y, log_det


def _own(matrix: Tensor) -> Tensor:
    """The entries of a (C, C·K) matrix that join a channel with its own copies, (C·K,)."""
    channels, width = matrix.shape
    group = torch.arange(width, device=matrix.device) // (width // channels)
    return matrix.gather(0, group[None, :]).flatten()


_COMPILED: list[Callable[..., tuple[Tensor, Tensor]]] = []


def compiled_mint_layer() -> Callable[..., tuple[Tensor, Tensor]]:
    """`mint_layer` compiled, made when it is first wanted."""
    if not _COMPILED:
        torch._dynamo.config.cache_size_limit = 64
        _COMPILED.append(torch.compile(mint_layer, dynamic=False))
    return _COMPILED[0]
