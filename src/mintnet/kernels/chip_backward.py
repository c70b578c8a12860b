"""The Triton code of a Mint layer of few channels, backward; the forward half is `chip_forward`.

Sums over pixels, which are gradients of weights, are taken by a bounded number of programs, each
over every so many blocks; a row of partial sums each is left to be added up, in a fixed order.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from mintnet.kernels.chip_forward import elu, first_weights, inside, places_of, seen_block, square


@triton.jit
def slope_gradient(
    at, p, pixels, CHANNELS: tl.constexpr, COPIES: tl.constexpr, WIDTH: tl.constexpr
):
    """The gradient of each channel's slope, for each of its copies; 0 for dead ones."""
    w = tl.arange(0, WIDTH)
    live = (w < CHANNELS * COPIES)[None, :]
    if CHANNELS == 1:
        g = tl.load(at + p, mask=p < pixels, other=0.0)
        return tl.where(live, g[:, None], 0.0)
    else:
        live = live & (p < pixels)[:, None]
        return tl.load(at + p[:, None] * CHANNELS + (w // COPIES)[None, :], mask=live, other=0.0)


@triton.jit
def inner_kernel(
    x_at,
    v2_at,
    first_at,
    third_at,
    bias1_at,
    product_at,
    g_sums_at,
    g_slope_at,
    g_v2_at,
    rows_at,
    pixels,
    height,
    width,
    blocks,
    programs,
    CHANNELS: tl.constexpr,
    COPIES: tl.constexpr,
    SIZE: tl.constexpr,
    FIRST: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of the sums and slopes → that of v², and rows of those of product, W³, b²."""
    number = first_at.dtype.element_ty
    w, k = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
    third_of = w[:, None] * (TAPS * CHANNELS) + k[None, :]
    third = tl.load(third_at + third_of, mask=(k < TAPS * CHANNELS)[None, :], other=0.0)
    product = square(product_at, WIDTH)
    first, bias1 = first_weights(first_at, bias1_at, TAPS * CHANNELS, COLUMNS, WIDTH)
    g_product = tl.zeros([WIDTH, WIDTH], tl.float32)
    g_third = tl.zeros([WIDTH, COLUMNS], tl.float32)
    g_bias = tl.zeros([WIDTH], tl.float32)
    for block in range(tl.program_id(0), blocks, programs):
        p, r, q = places_of(block, height, width, BLOCK)
        own = p[:, None] * WIDTH + w[None, :]
        kept = (p < pixels)[:, None]
        v2 = tl.load(v2_at + own, mask=kept, other=0.0).to(tl.float32)
        h2, d2 = elu(v2)
        seen = seen_block(
            x_at, p, r, q, pixels, height, width, 1, CHANNELS, SIZE, FIRST, TAPS, COLUMNS
        )
        v1 = tl.dot(seen.to(number), first, input_precision=PRECISION) + bias1
        _, d1 = elu(v1)
        d1 = d1.to(number)
        mixed = tl.dot(d1, tl.trans(product), input_precision=PRECISION)
        g_parts = seen_block(
            g_sums_at, p, r, q, pixels, height, width, -1, CHANNELS, SIZE, FIRST, TAPS, COLUMNS
        ).to(number)
        g_h2 = tl.dot(g_parts, tl.trans(third), input_precision=PRECISION)
        g_mixed = slope_gradient(g_slope_at, p, pixels, CHANNELS, COPIES, WIDTH) * d2
        g_v2 = g_h2 * d2 + tl.where(v2 <= 0, g_mixed * mixed, 0.0)
        tl.store(g_v2_at + own, g_v2.to(number), mask=kept)
        g_bias += tl.sum(g_v2, 0)
        g_product = tl.dot(
            tl.trans(g_mixed.to(number)), d1, acc=g_product, input_precision=PRECISION
        )
        g_third = tl.dot(tl.trans(h2.to(number)), g_parts, acc=g_third, input_precision=PRECISION)
    rows_at += tl.program_id(0) * (WIDTH * (WIDTH + COLUMNS + 1))
    tl.store(rows_at + w[:, None] * WIDTH + w[None, :], g_product)
    rows_at += WIDTH * WIDTH
    tl.store(rows_at + w[:, None] * COLUMNS + k[None, :], g_third)
    tl.store(rows_at + WIDTH * COLUMNS + w, g_bias)


@triton.jit
def outer_kernel(
    x_at,
    v2_at,
    first_at,
    second_at,
    bias1_at,
    product_at,
    g_slope_at,
    g_v2_at,
    g_seen_at,
    rows_at,
    pixels,
    height,
    width,
    blocks,
    programs,
    CHANNELS: tl.constexpr,
    COPIES: tl.constexpr,
    SIZE: tl.constexpr,
    FIRST: tl.constexpr,
    TAPS: tl.constexpr,
    SLOT: tl.constexpr,
    SLOTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of v² and the slopes → that of what each pixel sees, and rows of W¹ and b¹."""
    number = first_at.dtype.element_ty
    w, k = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
    known = (k < TAPS * CHANNELS)[None, :]
    product = square(product_at, WIDTH)
    first, bias1 = first_weights(first_at, bias1_at, TAPS * CHANNELS, COLUMNS, WIDTH)
    g_first = tl.zeros([COLUMNS, WIDTH], tl.float32)
    g_bias = tl.zeros([WIDTH], tl.float32)
    for block in range(tl.program_id(0), blocks, programs):
        p, r, q = places_of(block, height, width, BLOCK)
        kept = (p < pixels)[:, None]
        g_h1 = tl.zeros([BLOCK, WIDTH], tl.float32)
        for tap in range(FIRST, FIRST + TAPS):
            dr, dq = SIZE // 2 - tap // SIZE, SIZE // 2 - tap % SIZE  # to where the tap looks here
            valid = inside(p, r, q, dr, dq, pixels, height, width)
            from_at = g_v2_at + (p + dr * width + dq)[:, None] * WIDTH + w[None, :]
            g_v2 = tl.load(from_at, mask=valid[:, None], other=0.0)
            weight_of = w[:, None] * (SLOTS * WIDTH) + (tap - SLOT) * WIDTH + w[None, :]
            weight = tl.load(second_at + weight_of)
            g_h1 = tl.dot(g_v2, weight, acc=g_h1, input_precision=PRECISION)
        v2 = tl.load(v2_at + p[:, None] * WIDTH + w[None, :], mask=kept, other=0.0)
        _, d2 = elu(v2.to(tl.float32))
        g_mixed = slope_gradient(g_slope_at, p, pixels, CHANNELS, COPIES, WIDTH) * d2
        g_d1 = tl.dot(g_mixed.to(number), product, input_precision=PRECISION)
        seen = seen_block(
            x_at, p, r, q, pixels, height, width, 1, CHANNELS, SIZE, FIRST, TAPS, COLUMNS
        ).to(number)
        v1 = tl.dot(seen, first, input_precision=PRECISION) + bias1
        _, d1 = elu(v1)
        g_v1 = d1 * (g_h1 + tl.where(v1 <= 0, g_d1, 0.0))
        g_bias += tl.sum(g_v1, 0)
        g_v1 = g_v1.to(number)
        g_first = tl.dot(tl.trans(seen), g_v1, acc=g_first, input_precision=PRECISION)
        g_seen = tl.dot(g_v1, tl.trans(first), input_precision=PRECISION)
        g_seen_of = p[:, None] * (TAPS * CHANNELS) + k[None, :]
        tl.store(g_seen_at + g_seen_of, g_seen, mask=kept & known)
    rows_at += tl.program_id(0) * (WIDTH * (COLUMNS + 1))
    tl.store(rows_at + k[:, None] * WIDTH + w[None, :], g_first)
    tl.store(rows_at + WIDTH * COLUMNS + w, g_bias)


@triton.jit
def weight_kernel(
    h1_at,
    g_v2_at,
    rows_at,
    pixels,
    height,
    width,
    blocks,
    programs,
    SIZE: tl.constexpr,
    SLOT: tl.constexpr,
    SLOTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """h¹ and the gradient of v² → rows of that of W², (out, slot, in), TOGETHER slots at once."""
    w, j = tl.arange(0, WIDTH), tl.arange(0, TOGETHER * WIDTH)
    slot = tl.program_id(1) * TOGETHER + j // WIDTH
    dr, dq = (SLOT + slot) // SIZE - SIZE // 2, (SLOT + slot) % SIZE - SIZE // 2
    away = (dr * width + dq) * WIDTH + j % WIDTH
    known = slot < SLOTS
    total = tl.zeros([WIDTH, TOGETHER * WIDTH], tl.float32)
    for block in range(tl.program_id(0), blocks, programs):
        p, r, q = places_of(block, height, width, BLOCK)
        own = p[:, None] * WIDTH + w[None, :]
        g_v2 = tl.load(g_v2_at + own, mask=(p < pixels)[:, None], other=0.0)
        valid = inside(
            p[:, None], r[:, None], q[:, None], dr[None, :], dq[None, :], pixels, height, width
        )
        h1_of = p[:, None] * WIDTH + away[None, :]
        h1 = tl.load(h1_at + h1_of, mask=valid & known[None, :], other=0.0)
        total = tl.dot(tl.trans(g_v2), h1, acc=total, input_precision=PRECISION)
    rows_at += tl.program_id(0) * (WIDTH * SLOTS * WIDTH) + tl.program_id(1) * TOGETHER * WIDTH
    tl.store(rows_at + w[:, None] * (SLOTS * WIDTH) + j[None, :], total, mask=known[None, :])
