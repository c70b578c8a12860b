"""The inverse of mixtures as one Triton kernel for GPUs.

The wavefront inverts mixtures of few entries on each of its many levels. As operations of torch one
inverse is about 1800 launches, 45 for each of 40 steps, and launches are what the time goes into.
One kernel takes all steps, and each of its programs stops when its entries are found. It reads
nothing back to the host, so that a CUDA graph can hold it.

Import this module where it is needed: it imports Triton, which there is for GPUs alone.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
from torch import Tensor

from mintnet.bijections.logistics import Mixture

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

_log = logging.getLogger(__name__)

MOST_COMPONENTS = 32  # a thread holds all of its entry; with more, compiling would take long
ROWS = 32  # entries of a program, one for each thread of one warp


def can_invert(mixture: Mixture, y: Tensor) -> bool:
    """Whether `invert_on_gpu` takes this: on a GPU, of one type, and Triton works there."""
    if triton is None or not y.is_cuda or torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and any(part.requires_grad for part in (*mixture, y)):
        return False  # the kernel has no derivative
    components = mixture.log_weight.shape[-1]
    same = all((part.dtype, part.device) == (y.dtype, y.device) for part in mixture)
    known = y.dtype in (torch.float32, torch.float64) and components <= MOST_COMPONENTS
    return same and known and _builds(components, y.dtype, y.device)


def invert_on_gpu(mixture: Mixture, y: Tensor) -> Tensor:
    """x with value y, as `Mixture.invert` finds it; NaN where a value on the way is NaN."""
    components = mixture.log_weight.shape[-1]
    x = torch.empty_like(y, memory_format=torch.contiguous_format)
    # Components first, so that neighbouring threads read neighbouring numbers. The exponential is
    # that of torch: the one of Triton is off by some units in the last place.
    wide = (mixture.log_weight, mixture.log_slope.exp(), mixture.offset)
    parts = torch.stack([part.expand(*y.shape, components).movedim(-1, 0) for part in wide])
    singles = torch.stack([part.expand(y.shape) for part in (mixture.centre, mixture.t, y)])
    sizes = components, triton.next_power_of_2(components), ROWS
    count, eps = y.numel(), torch.finfo(y.dtype).eps
    if count:
        with torch.cuda.device_of(y):
            arrays = parts.contiguous(), singles.contiguous(), x
            _kernel[(triton.cdiv(count, ROWS),)](*arrays, count, eps, *sizes, num_warps=1)
    return x


@functools.cache
def _builds(components: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel runs: Triton asks for a C compiler and for not too old a GPU."""
    one = torch.ones(1, dtype=dtype, device=device)
    wide = one.expand(1, components)
    mixture = Mixture(wide, wide, wide, one, one)
    return builds(lambda: invert_on_gpu(mixture, one), "mixtures are inverted")


def builds(trial: Callable[[], object], what: str) -> bool:
    """Whether a kernel compiles and runs; if not, why is logged once."""
    try:
        trial()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of Triton, of the compiler or of the driver
        _log.warning("%s without Triton, slower (%s)", what, str(error).split("\n")[0])
        return False
    return True


def _newton(
    parts: tl.tensor,
    singles: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    eps: tl.constexpr,
    components: tl.constexpr,
    padded: tl.constexpr,
    rows: tl.constexpr,
) -> None:
    """log π, a and m are in ``parts``, (3, components, count); ℓ, t and y in ``singles``."""
    count = count.to(tl.int64)
    entry = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    active, k = entry < count, tl.arange(0, padded)[:, None]
    real, at = k < components, k * count + entry[None, :]
    read, each = real & active[None, :], components * count
    log_weight = tl.where(real, tl.load(parts + at, read, 0.0), float("-inf"))
    a, m = tl.load(parts + each + at, read, 1.0), tl.load(parts + 2 * each + at, read, 0.0)
    centre, t = tl.load(singles + entry, active), tl.load(singles + count + entry, active)
    y = tl.load(singles + 2 * count + entry, active)

    ends = (y[None, :] + m + a * centre[None, :]) / (t[None, :] + a)
    low = tl.min(tl.where(real, ends, float("inf")), 0)
    high = tl.max(tl.where(real, ends, float("-inf")), 0)
    x, last = low + (high - low) / 2, tl.full((rows,), float("inf"), y.dtype)
    step = 0
    while (step < 80) & (tl.max(active.to(tl.int32), 0) > 0):
        u = a * (x - centre)[None, :] - m
        z = tl.exp(-tl.abs(u))  # the smaller of σ(u) and σ(−u) is z / (1 + z)
        rest = (1 + z) - 1  # 1 + z as it is rounded, less 1: so log(1 + z) is right for small z
        log1p = tl.where(rest == 0, z, z * tl.log(1 + z) / tl.where(rest == 0, 1, rest))
        below = log_weight + (tl.minimum(u, 0) - log1p)
        above = log_weight + (tl.minimum(-u, 0) - log1p)
        most_below, most_above = tl.max(below, 0), tl.max(above, 0)
        w, v = tl.exp(below - most_below[None, :]), tl.exp(above - most_above[None, :])
        sum_w, sum_v = tl.sum(w, 0), tl.sum(v, 0)
        total = (most_below + tl.log(sum_w)) - (most_above + tl.log(sum_v))
        up, down = tl.where(u > 0, 1, z) / (1 + z), tl.where(u > 0, z, 1) / (1 + z)
        terms = a * (w / sum_w[None, :] * down + v / sum_v[None, :] * up)

        excess = t * x + total - y
        low, high = tl.where(excess < 0, x, low), tl.where(excess > 0, x, high)
        newton, size = excess / (t + tl.sum(terms, 0)), tl.abs(excess)
        candidate = x - newton
        trusted = (candidate >= low) & (candidate <= high) & (size <= 0.5 * last)
        done = (size <= 2 * eps * (1 + tl.abs(y))) | (tl.abs(newton) <= eps * tl.abs(x))
        done = done | (high - low <= 2 * eps * tl.abs(x)) | (excess != excess)
        following = tl.where(trusted, candidate, low + (high - low) / 2)
        x = tl.where(excess != excess, excess, tl.where(active & (done == 0), following, x))
        active, last, step = active & (done == 0), size, step + 1
    tl.store(out + entry, x, entry < count)


if triton is not None:
    # Compiled for any count and address alike: an entry has the same bits in every batch.
    arrays = ["parts", "singles", "out"]
    options = {"do_not_specialize": ["count"], "do_not_specialize_on_alignment": arrays}
    _kernel = triton.jit(_newton, **options)
