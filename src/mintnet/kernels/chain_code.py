"""The Triton code of the element-wise chain; `mintnet.kernels.chain` says what it does.

Matrices have a row for each pixel and WIDTH columns, of which C · K are alive, channel by channel.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from mintnet.kernels.chip_forward import elu


@triton.jit
def activate_kernel(v_at, h_at, d_at, entries, BLOCK: tl.constexpr):
    """v → h(v), h'(v)."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(v_at + i, mask=i < entries, other=0.0).to(tl.float32)
    h, d = elu(v)
    tl.store(h_at + i, h.to(h_at.dtype.element_ty), mask=i < entries)
    tl.store(d_at + i, d.to(d_at.dtype.element_ty), mask=i < entries)


@triton.jit
def activate_gradient_kernel(v_at, g_h_at, g_d_at, g_v_at, entries, BLOCK: tl.constexpr):
    """The gradients of h(v) and h'(v) → that of v."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(v_at + i, mask=i < entries, other=0.0).to(tl.float32)
    g_h = tl.load(g_h_at + i, mask=i < entries, other=0.0).to(tl.float32)
    g_d = tl.load(g_d_at + i, mask=i < entries, other=0.0).to(tl.float32)
    _, d = elu(v)
    g_v = d * (g_h + tl.where(v <= 0, g_d, 0.0))
    tl.store(g_v_at + i, g_v.to(g_v_at.dtype.element_ty), mask=i < entries)


@triton.jit
def slopes_kernel(
    v_at,
    mixed_at,
    h_at,
    slope_at,
    pixels,
    CHANNELS: tl.constexpr,
    COPIES: tl.constexpr,
    GROUPS: tl.constexpr,
    PLACES: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """v, mixed → h(v), and h'(v) · mixed summed over the copies of each channel, float32.

    Columns are taken as GROUPS of COPIES each, the dead ones too, in PLACES.
    """
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, k = tl.arange(0, GROUPS), tl.arange(0, PLACES)
    column = c[:, None] * COPIES + k[None, :]
    known = (k < COPIES)[None, :] & (column < WIDTH)
    at = p[:, None, None] * WIDTH + column[None, :, :]
    known = (p < pixels)[:, None, None] & known[None, :, :]
    v = tl.load(v_at + at, mask=known, other=0.0).to(tl.float32)
    mixed = tl.load(mixed_at + at, mask=known, other=0.0).to(tl.float32)
    h, d = elu(v)
    tl.store(h_at + at, h.to(h_at.dtype.element_ty), mask=known)
    slope = tl.sum(d * mixed, 2)
    to = p[:, None] * CHANNELS + c[None, :]
    tl.store(slope_at + to, slope, mask=(p < pixels)[:, None] & (c < CHANNELS)[None, :])


@triton.jit
def slopes_gradient_kernel(
    v_at,
    mixed_at,
    g_h_at,
    g_slope_at,
    g_v_at,
    g_mixed_at,
    pixels,
    CHANNELS: tl.constexpr,
    COPIES: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradients of h(v) and of the slopes → those of v and mixed."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    w = tl.arange(0, COLUMNS)
    at = p[:, None] * WIDTH + w[None, :]
    known = (p < pixels)[:, None] & (w < WIDTH)[None, :]
    alive = known & (w < CHANNELS * COPIES)[None, :]
    v = tl.load(v_at + at, mask=known, other=0.0).to(tl.float32)
    mixed = tl.load(mixed_at + at, mask=known, other=0.0).to(tl.float32)
    g_h = tl.load(g_h_at + at, mask=known, other=0.0).to(tl.float32)
    slope_of = p[:, None] * CHANNELS + (w // COPIES)[None, :]
    g_slope = tl.load(g_slope_at + slope_of, mask=alive, other=0.0)
    _, d = elu(v)
    g_mixed = g_slope * d
    g_v = g_h * d + tl.where(v <= 0, g_mixed * mixed, 0.0)
    tl.store(g_v_at + at, g_v.to(g_v_at.dtype.element_ty), mask=known)
    tl.store(g_mixed_at + at, g_mixed.to(g_mixed_at.dtype.element_ty), mask=known)
