"""The element-wise chain of a Mint layer with its slopes, as Triton kernels.

For wide layers, whose convolutions are best left to libraries. What lies between them is

    v¹ → h(v¹), h'(v¹)        and        v², mixed → h(v²), Σ_copies h'(v²) · mixed

with each tensor read once and written once, and nothing kept for the backward pass but v¹, v² and
mixed. The plain twin is the code of `mint_layer`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from mintnet.kernels.mint import (
    GATHERED,
    Prepared,
    closing,
    compiled,
    gather_taps,
    scatter_taps,
    seen_taps,
)

ENTRIES = 2048
"""A program's share where only entries matter."""
ROWS_ENTRIES = 4096
"""The same where it takes whole rows."""


def activated(v: Tensor) -> tuple[Tensor, Tensor]:
    """h(v) = ELU and h'(v), in the precision of v and of any shape; v is contiguous.

    The plain twin is ``F.elu(v), v.clamp(max=0).exp()``.
    """
    h, d = _Activated.apply(v)  # type: ignore[no-untyped-call]
    return h, d


def with_slopes(v: Tensor, mixed: Tensor, channels: int, filters: int) -> tuple[Tensor, Tensor]:
    """h(v) = ELU, and h'(v) · mixed summed over the copies of each channel, float32.

    Shapes: v and mixed (..., width), contiguous, of which the first C·K columns are alive;
    → (..., width), (..., C).
    """
    h, slope = _WithSlopes.apply(v, mixed, channels, filters)  # type: ignore[no-untyped-call]
    return h, slope


def mint_layer_chain(
    x: Tensor, weights: Prepared, filters: int, size: int, upper: bool, compile: bool = True
) -> tuple[Tensor, Tensor]:
    """`mint_layer` with the chain as kernels; ``compile`` is for what comes before and after."""
    first, second, third, b1, b2, b3, product, t = weights
    channels, radius, dtype = x.shape[1], size // 2, second.dtype
    taps = seen_taps(channels, size, upper)
    gather, bring, close = _gathered, scatter_taps, closing
    if compile:
        gather, bring, close = (compiled(f) for f in (gather, bring, close))
    x = x.contiguous(memory_format=torch.channels_last)
    if channels <= GATHERED:
        v1 = gather(x, taps, size, dtype) @ first + b1
    else:
        v1 = F.conv2d(x.to(dtype), first, b1, padding=radius).permute(0, 2, 3, 1)
    h1, d1 = activated(v1.contiguous())
    h1 = h1.permute(0, 3, 1, 2)
    if channels == 1:
        h1 = F.pad(h1, (0, 0, 0, radius) if upper else (0, 0, radius, 0))
        v2 = F.conv2d(h1, second, b2, padding=(0, radius))
    else:
        v2 = F.conv2d(h1, second, b2, padding=radius)
    h2, slope = with_slopes(v2.permute(0, 2, 3, 1).contiguous(), d1 @ product.mT, channels, filters)
    if channels <= GATHERED:
        sums = bring((h2 @ third).unflatten(-1, (len(taps), channels)), taps, size)
    else:
        sums = F.conv2d(h2.permute(0, 3, 1, 2), third, padding=radius).permute(0, 2, 3, 1)
    y, log_det = close(x, sums, slope, t, b3)
    return y, log_det


def _gathered(x: Tensor, taps: list[int], size: int, dtype: torch.dtype) -> Tensor:
    return gather_taps(x.permute(0, 2, 3, 1).to(dtype), taps, size)


class _Activated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor]:
        from mintnet.kernels.chain_code import activate_kernel  # needs Triton

        h, d = torch.empty_like(v), torch.empty_like(v)
        with torch.cuda.device_of(v):
            activate_kernel[(-(-v.numel() // ENTRIES),)](v, h, d, v.numel(), BLOCK=ENTRIES)
        ctx.save_for_backward(v)
        return h, d

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        from mintnet.kernels.chain_code import activate_gradient_kernel

        (v,) = ctx.saved_tensors
        g_h, g_d = (gradient.contiguous() for gradient in gradients)
        g_v = torch.empty_like(v)
        grid = (-(-v.numel() // ENTRIES),)
        with torch.cuda.device_of(v):
            activate_gradient_kernel[grid](v, g_h, g_d, g_v, v.numel(), BLOCK=ENTRIES)
        return g_v


class _WithSlopes(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, v: Tensor, mixed: Tensor, channels: int, filters: int
    ) -> tuple[Tensor, Tensor]:
        from mintnet.kernels.chain_code import slopes_kernel

        mixed = mixed.contiguous()
        h = torch.empty_like(v)
        slope = v.new_empty((*v.shape[:-1], channels), dtype=torch.float32)
        rows = v.numel() // v.shape[-1]
        groups, places = _power_of_2(-(-v.shape[-1] // filters)), _power_of_2(filters)
        block = max(1, ROWS_ENTRIES // (groups * places))
        with torch.cuda.device_of(v):
            slopes_kernel[(-(-rows // block),)](
                *(v, mixed, h, slope, rows),
                CHANNELS=channels,
                COPIES=filters,
                GROUPS=groups,
                PLACES=places,
                WIDTH=v.shape[-1],
                BLOCK=block,
                num_warps=8,
            )
        ctx.save_for_backward(v, mixed)
        ctx.channels, ctx.filters = channels, filters
        return h, slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from mintnet.kernels.chain_code import slopes_gradient_kernel

        v, mixed = ctx.saved_tensors
        g_h, g_slope = gradients[0].contiguous(), gradients[1].float().contiguous()
        g_v, g_mixed = torch.empty_like(v), torch.empty_like(v)
        rows, columns = v.numel() // v.shape[-1], _power_of_2(v.shape[-1])
        block = max(1, ROWS_ENTRIES // columns)
        with torch.cuda.device_of(v):
            slopes_gradient_kernel[(-(-rows // block),)](
                *(v, mixed, g_h, g_slope, g_v, g_mixed, rows),
                CHANNELS=ctx.channels,
                COPIES=ctx.filters,
                COLUMNS=columns,
                WIDTH=v.shape[-1],
                BLOCK=block,
                num_warps=8,
            )
        return g_v, g_mixed, None, None


def _power_of_2(size: int) -> int:
    """The least power of 2 that is not smaller."""
    return 1 << (size - 1).bit_length()
