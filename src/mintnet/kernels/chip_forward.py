"""The Triton code of a Mint layer of few channels, forward; `mintnet.kernels.chip` says what it is.

Pixels of all images are one list; a program takes a block of them. A tap is a number in a kernel
of SIZE × SIZE, row by row; the mask leaves TAPS of them from FIRST on. Of W² the memory holds
SLOTS taps from SLOT on. Matrices of activations have a row for each pixel and WIDTH columns.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def places_of(block, height, width, BLOCK: tl.constexpr):
    """Pixels of a block, and their rows and columns in the image."""
    p = block * BLOCK + tl.arange(0, BLOCK)
    place = p % (height * width)
    return p, place // width, place % width


@triton.jit
def inside(p, r, q, dr, dq, pixels, height, width):
    """Whether a pixel, and what lies (dr, dq) from it, are in the image."""
    row, column = r + dr, q + dq
    return (p < pixels) & (row >= 0) & (row < height) & (column >= 0) & (column < width)


@triton.jit
def seen_block(
    x_at,
    p,
    r,
    q,
    pixels,
    height,
    width,
    SIGN: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    FIRST: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Column tap · C + c holds channel c at p + SIGN · tap, 0 outside. Shape: (BLOCK, COLUMNS)."""
    k = tl.arange(0, COLUMNS)
    tap = FIRST + k // CHANNELS
    dr = SIGN * (tap // SIZE - SIZE // 2)
    dq = SIGN * (tap % SIZE - SIZE // 2)
    valid = inside(
        p[:, None], r[:, None], q[:, None], dr[None, :], dq[None, :], pixels, height, width
    )
    valid = valid & (k < TAPS * CHANNELS)[None, :]
    at = (p[:, None] + (dr * width + dq)[None, :]) * CHANNELS + (k % CHANNELS)[None, :]
    return tl.load(x_at + at, mask=valid, other=0.0)


@triton.jit
def first_weights(first_at, bias1_at, ROWS, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    """W¹, (COLUMNS, WIDTH), and b¹ as a row, float32."""
    k, w = tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    first = tl.load(first_at + k[:, None] * WIDTH + w[None, :], mask=(k < ROWS)[:, None], other=0.0)
    return first, tl.load(bias1_at + w).to(tl.float32)[None, :]


@triton.jit
def elu(v):
    """h(v) and h'(v), float32."""
    slope = tl.exp(tl.minimum(v, 0.0))
    return tl.where(v > 0, v, slope - 1.0), slope


@triton.jit
def square(at, WIDTH: tl.constexpr):
    """A (WIDTH, WIDTH) matrix."""
    w = tl.arange(0, WIDTH)
    return tl.load(at + w[:, None] * WIDTH + w[None, :])


@triton.jit
def first_kernel(
    x_at,
    first_at,
    bias1_at,
    h1_at,
    pixels,
    height,
    width,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    FIRST: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """x → h¹ = h(W¹ x + b¹)."""
    number = first_at.dtype.element_ty
    p, r, q = places_of(tl.program_id(0), height, width, BLOCK)
    seen = seen_block(x_at, p, r, q, pixels, height, width, 1, CHANNELS, SIZE, FIRST, TAPS, COLUMNS)
    first, bias1 = first_weights(first_at, bias1_at, TAPS * CHANNELS, COLUMNS, WIDTH)
    v1 = tl.dot(seen.to(number), first, input_precision=PRECISION) + bias1
    h1, _ = elu(v1)
    at = p[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(h1_at + at, h1.to(number), mask=(p < pixels)[:, None])


@triton.jit
def second_kernel(
    x_at,
    h1_at,
    first_at,
    second_at,
    third_at,
    bias1_at,
    bias2_at,
    product_at,
    v2_at,
    parts_at,
    slope_at,
    pixels,
    height,
    width,
    CHANNELS: tl.constexpr,
    COPIES: tl.constexpr,
    GROUPS: tl.constexpr,
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
    """x, h¹ → v² = W² h¹ + b², what each tap of W³ contributes, and the slopes."""
    number = first_at.dtype.element_ty
    p, r, q = places_of(tl.program_id(0), height, width, BLOCK)
    w, k = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
    v2 = tl.zeros([BLOCK, WIDTH], tl.float32) + tl.load(bias2_at + w).to(tl.float32)[None, :]
    for tap in range(FIRST, FIRST + TAPS):
        dr, dq = tap // SIZE - SIZE // 2, tap % SIZE - SIZE // 2
        valid = inside(p, r, q, dr, dq, pixels, height, width)
        h1_of = (p + dr * width + dq)[:, None] * WIDTH + w[None, :]
        h1 = tl.load(h1_at + h1_of, mask=valid[:, None], other=0.0)
        # (in, out) of what lies (out, slot, in) in memory
        weight_of = w[None, :] * (SLOTS * WIDTH) + (tap - SLOT) * WIDTH + w[:, None]
        v2 = tl.dot(h1, tl.load(second_at + weight_of), acc=v2, input_precision=PRECISION)
    v2 = v2.to(number)  # the backward pass sees it as it is kept
    kept = (p < pixels)[:, None]
    tl.store(v2_at + p[:, None] * WIDTH + w[None, :], v2, mask=kept)
    h2, d2 = elu(v2.to(tl.float32))
    known = (k < TAPS * CHANNELS)[None, :]
    third = tl.load(third_at + w[:, None] * (TAPS * CHANNELS) + k[None, :], mask=known, other=0.0)
    parts = tl.dot(h2.to(number), third, input_precision=PRECISION)
    tl.store(parts_at + p[:, None] * (TAPS * CHANNELS) + k[None, :], parts, mask=kept & known)
    seen = seen_block(x_at, p, r, q, pixels, height, width, 1, CHANNELS, SIZE, FIRST, TAPS, COLUMNS)
    first, bias1 = first_weights(first_at, bias1_at, TAPS * CHANNELS, COLUMNS, WIDTH)
    v1 = tl.dot(seen.to(number), first, input_precision=PRECISION) + bias1
    _, d1 = elu(v1)
    product = square(product_at, WIDTH)
    mixed = tl.dot(d1.to(number), tl.trans(product), input_precision=PRECISION)
    terms = tl.where((w < CHANNELS * COPIES)[None, :], d2 * mixed, 0.0)
    if CHANNELS == 1:
        tl.store(slope_at + p, tl.sum(terms, 1), mask=p < pixels)
    else:
        c = tl.arange(0, GROUPS)
        own = (w[:, None] // COPIES == c[None, :]).to(tl.float32)
        slope = tl.dot(terms, own, input_precision="tf32x3")
        slope_of = p[:, None] * CHANNELS + c[None, :]
        tl.store(slope_at + slope_of, slope, mask=kept & (c < CHANNELS)[None, :])


@triton.jit
def collect_kernel(
    parts_at,
    sums_at,
    pixels,
    height,
    width,
    SIGN: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    FIRST: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Contributions of each tap at p + SIGN · tap, summed: (pixels, TAPS · C) → (pixels, C)."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p, c = entry // CHANNELS, entry % CHANNELS
    place = p % (height * width)
    r, q = place // width, place % width
    total = tl.zeros([BLOCK], tl.float32)
    for tap in range(TAPS):
        dr = SIGN * ((FIRST + tap) // SIZE - SIZE // 2)
        dq = SIGN * ((FIRST + tap) % SIZE - SIZE // 2)
        valid = inside(p, r, q, dr, dq, pixels, height, width)
        at = ((p + dr * width + dq) * TAPS + tap) * CHANNELS + c
        total += tl.load(parts_at + at, mask=valid, other=0.0)
    tl.store(sums_at + entry, total, mask=p < pixels)
