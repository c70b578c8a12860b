"""The wavefront inverse of a Mint layer as one Triton kernel: one program a sample.

The program walks the levels of the ordering from first to last. On each level it takes the
entries of one channel at a time, at most `PLACES` of them: what earlier entries contribute is a
few small matrix products with activations that it keeps in device memory, and the equations in
one unknown that remain are solved side by side by the bracketed Newton method of
`mintnet.solvers.scalar`. Activations of entries that are not solved yet are 0 in the cache, so
that no mask is needed beyond that of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

PLACES = 16
"""Entries that are solved side by side: the least that a matrix product of Triton's takes."""

MAX_STEPS = 200
PRECISION = "tf32x3"
"""Three products of the matrix units for one: about float32, and up to three times faster than it.
The residual that certifies the answer is computed in true float32, elsewhere."""
ACTIVATIONS = {"ELU": 0, "LeakyReLU": 1}


@dataclass(frozen=True)
class MintWeights:
    """Eq. 2 as it acts: weights masked and with the signs of the constraint.

    Shapes: t and least (C, H, W), the factor of x and a positive lower bound of diag J;
    w1 (C·K, C, R, R); w2 (C·K, C·K, R, R); w3 (C, C·K, R, R); b1, b2 (C·K,); b3 (C,).
    """

    t: Tensor
    least: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    w3: Tensor
    b3: Tensor
    activation: str
    negative_slope: float
    upper: bool


@dataclass(frozen=True)
class Groups:
    """Entries that are solved together, level after level: one channel, some of its places.

    Shapes: channels (G,), places (G, PLACES) r · W + q, −1 where there is none; both int32.
    """

    channels: Tensor
    places: Tensor


def wavefront_kernel(
    layer: MintWeights, groups: Groups, z: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """x with f(x) = z, and the most Newton steps that a level took. Shapes: z (B, C, H, W); (B,).

    ``scale`` (B,): residuals below the rounding error of numbers of this size count as 0.
    """
    from mintnet.kernels.walk import walk_kernel  # needs Triton, and takes its time to import

    batch, channels, height, width = z.shape
    hidden, taps = layer.w2.shape[0], layer.w2.shape[-1]
    copies, radius = hidden // channels, taps // 2
    block_c = max(16, power_of_2(channels))
    block_k = max(16, power_of_2(copies))
    block_w = min(64, max(16, power_of_2(hidden)))
    wide = -(-hidden // block_w) * block_w
    rows = (height + 2 * radius) * (width + 2 * radius)
    # Rows of a cache are places of the padded image; their entries are channels.
    cache_x = z.new_zeros(batch, rows, block_c)
    cache_1, cache_2 = z.new_zeros(batch, rows, wide), z.new_zeros(batch, rows, wide)
    x = torch.full_like(z, float("nan"), memory_format=torch.contiguous_format)
    steps = torch.zeros(batch, dtype=torch.int32, device=z.device)
    grouped = (channels, copies)

    def laid_out(weight: Tensor, rows: int, columns: int) -> Tensor:
        """(taps, channel, copies, inputs), the last two padded."""
        by_tap = weight.flatten(2).permute(2, 0, 1)  # (taps, out, in)
        out = by_tap.unflatten(1, (channels, -1))
        return F.pad(out, (0, columns - out.shape[3], 0, rows - out.shape[2])).contiguous()

    def per_copy(bias: Tensor) -> Tensor:
        return F.pad(bias.reshape(grouped), (0, block_k - copies)).contiguous()

    def own(weight: Tensor, rows: int, columns: int) -> Tensor:
        """The weights between copies of one channel at the centre, (C, rows, columns)."""
        centre = weight[:, :, radius, radius]
        blocks = centre.reshape(channels, -1, channels, centre.shape[1] // channels)
        blocks = blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        return F.pad(blocks, (0, columns - blocks.shape[2], 0, rows - blocks.shape[1])).contiguous()

    walk_kernel[(batch,)](
        z.contiguous(),
        x,
        steps,
        scale.contiguous(),
        layer.t.contiguous(),
        layer.least.contiguous(),
        laid_out(layer.w1, block_k, block_c),
        per_copy(layer.b1),
        laid_out(layer.w2, block_k, wide),
        per_copy(layer.b2),
        laid_out(layer.w3, 1, wide),
        layer.b3.contiguous(),
        own(layer.w1, block_k, 1),
        own(layer.w2, block_k, block_k),
        own(layer.w3, 1, block_k),
        cache_x,
        cache_1,
        cache_2,
        groups.channels,
        groups.places,
        len(groups.channels),
        channels,
        copies,
        height,
        width,
        hidden,
        layer.negative_slope,
        torch.finfo(z.dtype).eps,
        TAPS=taps,
        BLOCK_C=block_c,
        BLOCK_K=block_k,
        BLOCK_W=block_w,
        WIDE=wide,
        N=PLACES,
        UPPER=layer.upper,
        ACTIVATION=ACTIVATIONS[layer.activation],
        LIMIT=MAX_STEPS,
        PRECISION=PRECISION,
        num_warps=8 if block_k >= 64 else 4,
        num_stages=2,
    )
    return x, steps


def power_of_2(size: int) -> int:
    """The least power of 2 that is not smaller.

    Examples:
        >>> power_of_2(5), power_of_2(8)
        (8, 8)
    """
    return 1 << (size - 1).bit_length()
