"""The Triton code of the wavefront; `mintnet.kernels.wavefront` says what it does."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def activated(v, negative, ACTIVATION: tl.constexpr):
    """h(v) and h'(v)."""
    below = tl.minimum(v, 0.0)
    if ACTIVATION == 0:
        slope = tl.exp(below)
        # exp(v) − 1 cancels near 0: there its series.
        series = below * (
            1 + below * (0.5 + below * (1 / 6 + below * (1 / 24 + below * (1 / 120))))
        )
        low = tl.where(below > -0.125, series, slope - 1.0)
        return tl.where(v > 0, v, low), slope
    else:
        return tl.where(v > 0, v, negative * v), tl.where(v > 0, 1.0, negative + 0.0 * v)


@triton.jit
def equation(
    x, t, c1, c2, c3, own1, own2, own3, negative, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr
):
    """f and f' in the unknowns alone, with the activations. Shapes: x (N,), c1 and c2 (K, N)."""
    h1, d1 = activated(c1 + own1 * x[None, :], negative, ACTIVATION)
    v2 = tl.dot(own2, h1, acc=c2, input_precision=PRECISION)
    s2 = tl.dot(own2, d1 * own1, input_precision=PRECISION)
    h2, d2 = activated(v2, negative, ACTIVATION)
    y = t * x + tl.sum(own3 * h2, 0) + c3
    slope = t + tl.sum(own3 * d2 * s2, 0)
    return y, slope, h1, h2


@triton.jit
def walk_kernel(
    z_at,
    x_at,
    steps_at,
    scale_at,
    t_at,
    least_at,
    w1_at,
    b1_at,
    w2_at,
    b2_at,
    w3_at,
    b3_at,
    own1_at,
    own2_at,
    own3_at,
    cache_x_at,
    cache_1_at,
    cache_2_at,
    channels_at,
    places_at,
    groups,
    channels,
    copies,
    height,
    width,
    hidden,
    negative,
    eps,
    TAPS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
    WIDE: tl.constexpr,
    N: tl.constexpr,
    UPPER: tl.constexpr,
    ACTIVATION: tl.constexpr,
    LIMIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All levels of one sample."""
    RADIUS: tl.constexpr = TAPS // 2
    sample = tl.program_id(0).to(tl.int64)
    padded = width + 2 * RADIUS
    rows = (height + 2 * RADIUS) * padded
    cache_x_at += sample * rows * BLOCK_C
    cache_1_at += sample * rows * WIDE
    cache_2_at += sample * rows * WIDE
    z_at += sample * channels * height * width
    x_at += sample * channels * height * width
    floor = 2 * eps * tl.load(scale_at + sample)
    n, k = tl.arange(0, N), tl.arange(0, BLOCK_K)
    c, w = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_W)
    most = 0
    for group in range(groups):
        channel = tl.load(channels_at + group)
        place = tl.load(places_at + group * N + n)
        valid = place >= 0
        place = tl.maximum(place, 0)
        row = (place // width + RADIUS) * padded + place % width + RADIUS
        at = channel * height * width + place
        target = tl.load(z_at + at, mask=valid, other=0.0)
        t = tl.load(t_at + at, mask=valid, other=1.0)
        least = tl.load(least_at + at, mask=valid, other=1.0)
        # What is known: biases, and contributions of earlier entries.
        c1 = tl.load(b1_at + channel * BLOCK_K + k)[:, None] + tl.zeros([BLOCK_K, N], tl.float32)
        c2 = tl.load(b2_at + channel * BLOCK_K + k)[:, None] + tl.zeros([BLOCK_K, N], tl.float32)
        c3 = tl.load(b3_at + channel) + tl.zeros([N], tl.float32)
        if UPPER:
            first, last = channel * copies // BLOCK_W * BLOCK_W, hidden
        else:
            first, last = 0, (channel + 1) * copies
        for tap in range(TAPS * TAPS):
            seen = row + (tap // TAPS - RADIUS) * padded + tap % TAPS - RADIUS
            of = tap * channels + channel  # rows of the weights of this tap and channel
            w1 = tl.load(w1_at + (of * BLOCK_K + k)[:, None] * BLOCK_C + c[None, :])
            xs = tl.load(cache_x_at + seen[None, :] * BLOCK_C + c[:, None])
            c1 = tl.dot(w1, xs, acc=c1, input_precision=PRECISION)
            for begin in range(first, last, BLOCK_W):
                w2 = tl.load(w2_at + (of * BLOCK_K + k)[:, None] * WIDE + begin + w[None, :])
                h1 = tl.load(cache_1_at + seen[None, :] * WIDE + begin + w[:, None])
                c2 = tl.dot(w2, h1, acc=c2, input_precision=PRECISION)
                w3 = tl.load(w3_at + of * WIDE + begin + w)
                h2 = tl.load(cache_2_at + seen[None, :] * WIDE + begin + w[:, None])
                c3 += tl.sum(w3[:, None] * h2, 0)
        # What is left: increasing functions of one unknown each, with a bound of their slopes.
        own1 = tl.load(own1_at + channel * BLOCK_K + k)[:, None]
        own2 = tl.load(own2_at + (channel * BLOCK_K + k)[:, None] * BLOCK_K + k[None, :])
        own3 = tl.load(own3_at + channel * BLOCK_K + k)[:, None]
        x = tl.zeros([N], tl.float32)
        best, best_size = x, x + float("inf")
        last_size, low, high = best_size, x - float("inf"), best_size
        done = valid == 0
        step = 0
        busy = 1
        while busy > 0:
            y, slope, _, _ = equation(
                x, t, c1, c2, c3, own1, own2, own3, negative, ACTIVATION, PRECISION
            )
            excess = y - target
            size = tl.abs(excess)
            better = size < best_size
            best, best_size = tl.where(better, x, best), tl.where(better, size, best_size)
            newton = excess / slope
            above = excess > 0
            high, low = tl.where(above, x, high), tl.where(above, low, x)
            done = done | (size <= floor) | (tl.abs(newton) <= eps * tl.abs(x)) | (size != size)
            if step == 0:
                other = x - 1.0001 * excess / least
                low, high = tl.where(above, other, low), tl.where(above, high, other)
            else:
                done = done | (high - low <= 2 * eps * tl.abs(x))
            candidate = x - newton
            trusted = (size <= 0.5 * last_size) & (candidate > low) & (candidate < high)
            moved = tl.where(trusted, candidate, low + (high - low) / 2)
            x = tl.where(done, x, moved)
            last_size = size
            step += 1
            busy = tl.where(step < LIMIT, tl.max(tl.where(done, 0, 1), 0), 0)
        most = tl.maximum(most, step)
        _, _, h1, h2 = equation(
            best, t, c1, c2, c3, own1, own2, own3, negative, ACTIVATION, PRECISION
        )
        tl.store(x_at + at, best, mask=valid)
        tl.store(cache_x_at + row * BLOCK_C + channel, best, mask=valid)
        kept = valid[None, :] & (k < copies)[:, None]
        hidden_at = row[None, :] * WIDE + channel * copies + k[:, None]
        tl.store(cache_1_at + hidden_at, h1, mask=kept)
        tl.store(cache_2_at + hidden_at, h2, mask=kept)
        tl.debug_barrier()  # what one thread wrote, others read on the next level
    tl.store(steps_at + sample, most)
