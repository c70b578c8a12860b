"""Mint layers with ELU level by level on a GPU: the equations of a level are one Triton kernel.

With the contributions of earlier levels known, each entry of a Mint layer is one increasing
equation in its own x. Newton's method for all entries of a level is some 50 launches a step as
operations of torch, and launches take the time; here it is one, in a CUDA graph of all levels.

Import this module where it is needed: it imports Triton, which there is for GPUs alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from mintnet.bijections.mint_evaluator import MintEvaluator
from mintnet.bijections.mixture_kernel import builds
from mintnet.calculus import ELU, Convolution, Ordering
from mintnet.calculus.linear import LinearMap
from mintnet.solvers.levels import LevelMap, LevelWalk

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

MOST_COPIES = 128  # the kernel holds the K × K weights between copies of a channel on the chip
ROWS = 16  # entries of a program: the fewest that Triton's products of matrices take


@dataclass(frozen=True)
class MintLevels(LevelMap):
    """Eq. 2 of a Mint layer with ELU, solved level by level; see `can_solve`."""

    evaluator: MintEvaluator
    ordering: Ordering

    def can_solve(self, x: Tensor) -> bool:
        """Whether the kernel takes x: float32 on a GPU, ELU, and Triton works there."""
        copies, known = self.evaluator.product.shape[-1], isinstance(self.evaluator.h, ELU)
        fits = x.is_cuda and x.dtype == torch.float32 and known and copies <= MOST_COPIES
        return fits and triton is not None and _builds(copies, x.device)

    def keep_input(self, walk: LevelWalk, level: int, x: Tensor) -> None:
        walk.keep(level, 0, x[:, None])

    def convolutions(self) -> list[LinearMap]:
        f = self.evaluator
        parts = zip(f.weights, f.biases, strict=True)
        return [Convolution(weight, bias, len(f.t), self.ordering) for weight, bias in parts]

    def constants(self, context: Tensor | None) -> tuple[Tensor, ...]:
        """t of each coordinate, (C · H · W,)."""
        return (self.evaluator.t.flatten(),)

    def solve_level(self, walk: LevelWalk, level: int, target: Tensor) -> Tensor:
        channels, (t,) = walk.channels(level), walk.constants
        v1, v2, v3 = (walk.known(level, index) for index in range(3))
        d1, d2, d3 = (walk.diagonal(index)[channels].contiguous() for index in range(3))
        places = walk.entries(level).numel() // len(target)
        own_t = t[walk.entries(level)].repeat_interleave(target.shape[1] // places)
        x = solve_on_gpu((v1, v2), (d1, d2, d3), own_t.view_as(target), target - v3[:, 0])
        h1 = self.evaluator.h.value(torch.baddbmm(v1, d1, x[:, None]))
        h2 = self.evaluator.h.value(torch.baddbmm(v2, d2, h1))
        walk.keep(level, 1, h1)
        walk.keep(level, 2, h2)
        return x


def solve_on_gpu(
    known: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor, Tensor], t: Tensor, target: Tensor
) -> Tensor:
    """x with t x + d³ h(v² + d² h(v¹ + d¹ x)) = target for h = ELU, by a bracketed Newton method.

    The slope is at least t > 0, which closes the bracket at the first step. Shapes, for A channels
    of K copies and N entries: known v¹ and v² (A, K, N); own weights d¹ (A, K, 1), d² (A, K, K),
    d³ (A, 1, K); t, target and x (A, N).
    """
    (channels, copies, count), x = known[0].shape, torch.empty_like(target)
    padded = max(16, triton.next_power_of_2(copies))
    grid, warps = (triton.cdiv(count, ROWS), channels), max(1, padded // 8)
    if x.numel():
        with torch.cuda.device_of(x):
            each = (*(part.contiguous() for part in (*known, *own, t, target)), x)
            sizes = torch.finfo(x.dtype).eps, copies, padded, ROWS
            _kernel[grid](*each, count, *sizes, num_warps=warps)
    return x


@functools.cache
def _builds(copies: int, device: torch.device) -> bool:
    one = torch.ones(1, 1, device=device)
    wide, square = one.expand(1, copies, 1), one.expand(1, copies, copies)
    own = wide, square, wide.mT
    return builds(lambda: solve_on_gpu((wide, wide), own, one, one), "Mint layers are inverted")


def _newton(
    v1: tl.tensor,
    v2: tl.tensor,
    d1: tl.tensor,
    d2: tl.tensor,
    d3: tl.tensor,
    t: tl.tensor,
    target: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    eps: tl.constexpr,
    copies: tl.constexpr,
    padded: tl.constexpr,
    rows: tl.constexpr,
) -> None:
    """Columns are copies, of which those that pad have weights of 0."""
    channel, count = tl.program_id(1).to(tl.int64), count.to(tl.int64)
    entry = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    k, j = tl.arange(0, padded)[None, :], tl.arange(0, padded)[:, None]
    active, real = entry < count, k < copies
    at, read = (channel * copies + k) * count + entry[:, None], real & active[:, None]
    v1, v2 = tl.load(v1 + at, read, 0.0), tl.load(v2 + at, read, 0.0)
    d1 = tl.load(d1 + channel * copies + k, real, 0.0)
    d3 = tl.load(d3 + channel * copies + k, real, 0.0)
    d2 = tl.load(d2 + (channel * copies + k) * copies + j, real & (j < copies), 0.0)  # transposed
    t = tl.load(t + channel * count + entry, active, 1.0)
    y = tl.load(target + channel * count + entry, active, 0.0)

    x = tl.zeros((rows,), y.dtype)
    low, high = x - float("inf"), x + float("inf")
    last, step = high, 0
    while (step < 60) & (tl.max(active.to(tl.int32), 0) > 0):
        u1 = v1 + d1 * x[:, None]
        e1 = tl.exp(tl.minimum(u1, 0))
        near = u1 * (1 + u1 / 2 * (1 + u1 / 3 * (1 + u1 / 4)))  # exp(u) − 1, where that cancels
        h1 = tl.where(u1 > 0, u1, tl.where(u1 > -0.03, near, e1 - 1))
        u2 = v2 + tl.dot(h1, d2, input_precision="ieee")
        e2 = tl.exp(tl.minimum(u2, 0))
        near = u2 * (1 + u2 / 2 * (1 + u2 / 3 * (1 + u2 / 4)))
        terms = d3 * tl.where(u2 > 0, u2, tl.where(u2 > -0.03, near, e2 - 1))
        slopes = d3 * e2 * tl.dot(e1 * d1, d2, input_precision="ieee")

        excess = t * x + tl.sum(terms, 1) - y
        unit = tl.abs(t * x) + tl.sum(tl.abs(terms), 1) + tl.abs(y)
        low, high = tl.where(excess < 0, x, low), tl.where(excess > 0, x, high)
        other, first = x - 1.0001 * excess / t, step == 0
        low = tl.where(first & (excess > 0), other, low)
        high = tl.where(first & (excess < 0), other, high)
        newton, size = excess / (t + tl.sum(slopes, 1)), tl.abs(excess)
        candidate = x - newton
        trusted = (candidate >= low) & (candidate <= high) & (size <= 0.5 * last)
        done = (size <= eps * unit) | (tl.abs(newton) <= eps * tl.abs(x)) | (excess != excess)
        done = done | (high - low <= 2 * eps * tl.abs(x))
        following = tl.where(trusted, candidate, low + (high - low) / 2)
        x = tl.where(excess != excess, excess, tl.where(active & (done == 0), following, x))
        active, last, step = active & (done == 0), size, step + 1
    tl.store(out + channel * count + entry, x, entry < count)


if triton is not None:
    # Compiled for any count and address alike: an entry has the same bits in every batch.
    arrays = ["v1", "v2", "d1", "d2", "d3", "t", "target", "out"]
    options = {"do_not_specialize": ["count"], "do_not_specialize_on_alignment": arrays}
    _kernel = triton.jit(_newton, **options)
