"""A Mint layer of few channels as a handful of Triton kernels, forward and backward.

It computes what `mint_layer` computes from the same weights. Hidden activations are large where
there are few channels (64 numbers for each one of x), so what a layer costs is their way to memory
and back. Here only three ever take it: h¹ and v², which the backward pass wants again, and the
gradient of v². They go because neighbouring pixels want them. Everything else (seen taps, slopes,
d¹, d², the mixed slopes, their gradients, the gradients of h¹, h² and v¹) lives on the chip, or is
computed there again.

Forward: x → h¹; x, h¹ → v², contributions of the taps of W³, slopes; contributions → their sums.
Backward: the gradient of v², with those of W³, b² and of the slope product; that of x, with those
of W¹ and b¹; that of W². What is pointwise in x and y (`closing`) is left to the compiler.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mintnet.kernels.mint import GATHERED, Prepared, closing, compiled, seen_taps
from mintnet.kernels.wavefront import power_of_2

WIDTHS = (16, 32, 64, 128)
"""Padded hidden widths that the kernels have blocks for."""
MOST_SEEN = 64
"""The most columns of what a pixel sees, taps times channels. With 16 channels there are 256, for
which the kernels were wrong on an H200: they left their memory."""


class Launch(NamedTuple):
    """How a kernel cuts its work: pixels that a program takes at once, its warps and stages."""

    block: int = 64
    warps: int = 4
    stages: int = 2

    @property
    def options(self) -> dict[str, int]:
        """As a kernel takes them."""
        return {"BLOCK": self.block, "num_warps": self.warps, "num_stages": self.stages}


class Tuning(NamedTuple):
    """How each kernel does, and how many programs share the sums over all pixels.

    Two programs of the backward pass have room on each of the 132 multiprocessors of an H200.
    """

    first: Launch = Launch(64, 4, 1)
    second: Launch = Launch(64, 4, 3)
    inner: Launch = Launch(64, 4, 2)
    outer: Launch = Launch(64, 4, 3)
    weight: Launch = Launch(64, 8, 3)
    programs: int = 264


def tuning_for(columns: int) -> Tuning:
    """What was fastest on an H200 (benchmarks/kernels_gpu.py), by what a pixel sees."""
    return Tuning(inner=Launch(32, 4, 2)) if columns <= 16 else Tuning()


def can_fuse(x: Tensor, weights: Prepared, size: int, upper: bool) -> bool:
    """Whether `chip_layer` takes these shapes and precisions; where it is fast is another matter.

    Examples:
        >>> from mintnet import MintLayer
        >>> from mintnet.kernels.mint import prepared_layers
        >>> layer = MintLayer(1, 45, (28, 28))
        >>> weights = prepared_layers([layer], torch.float32)[0]
        >>> can_fuse(torch.zeros(2, 1, 28, 28), weights, 3, upper=False)  # 48 is no power of 2
        False
    """
    width, channels = weights.bias1.shape[0], x.shape[1]
    seen, dtype = columns_of(channels, size, upper), weights.second.dtype
    return (
        channels <= GATHERED
        and width in WIDTHS
        and seen <= MOST_SEEN
        and x.dtype == torch.float32
        and dtype in (torch.bfloat16, torch.float16, torch.float32)
        # offsets are 32-bit numbers
        and 0 < x.numel() // channels * max(width, seen) < 2**31
    )


def chip_layer(
    x: Tensor,
    weights: Prepared,
    filters: int,
    size: int,
    upper: bool,
    tuning: Tuning | None = None,
    compile: bool = True,
) -> tuple[Tensor, Tensor]:
    """Eq. 2 for ELU and the logarithm of the diagonal of its Jacobian, summed, as `mint_layer`.

    Shapes: x (batch, C, H, W), K = ``filters``, kernels ``size`` × ``size``; → (batch, C, H, W),
    (batch,). ``compile`` is for what is pointwise.
    """
    first, second, third, b1, b2, b3, product, t = weights
    x = x.contiguous(memory_format=torch.channels_last)
    tuning = tuning or tuning_for(columns_of(x.shape[1], size, upper))
    how = _How.of(x, first, second, filters, size, upper, tuning)
    arguments = (x.permute(0, 2, 3, 1), first, second, third, b1, b2, product, how)
    sums, slope = _Chip.apply(*arguments)  # type: ignore[no-untyped-call]
    close = compiled(closing) if compile else closing
    y, log_det = close(x, sums, slope, t, b3)
    return y, log_det


def columns_of(channels: int, size: int, upper: bool) -> int:
    """Columns of the matrix of what pixels see: a power of 2, and at least 16.

    Examples:
        >>> columns_of(1, 3, upper=False), columns_of(4, 3, upper=False)
        (16, 64)
    """
    return max(16, power_of_2(len(seen_taps(channels, size, upper)) * channels))


class _How(NamedTuple):
    """What the kernels are told, beside tensors."""

    places: tuple[int, int, int]
    """Pixels of all images, height and width of one."""
    kernel: dict[str, Any]
    """Constants of every kernel but the last."""
    slots: dict[str, int]
    """Which taps the memory holds of W²."""
    filters: int
    tuning: Tuning

    @staticmethod
    def of(
        x: Tensor,
        first: Tensor,
        second: Tensor,
        filters: int,
        size: int,
        upper: bool,
        tuning: Tuning,
    ) -> _How:
        batch, channels, height, width = x.shape
        taps = seen_taps(channels, size, upper)
        kernel = {
            "CHANNELS": channels,
            "SIZE": size,
            "FIRST": taps[0],
            "TAPS": len(taps),
            "COLUMNS": columns_of(channels, size, upper),
            "WIDTH": first.shape[1],
            "PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3",
        }
        rows = second.shape[2]  # the last ones, or the first ones, where some are dropped
        slots = {"SLOT": (size - rows) * size if upper else 0, "SLOTS": rows * size}
        return _How((batch * height * width, height, width), kernel, slots, filters, tuning)


class _Chip(torch.autograd.Function):
    """x (B, H, W, C) and weights → what W³ adds to t·x, and slopes; (B, H, W, C), float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        from mintnet.kernels import chip_forward as code  # needs Triton, and takes its time

        *tensors, how = arguments
        first, second, third, b1, b2, product = tensors
        second = second.permute(0, 2, 3, 1)  # as `prepared` lays it out
        x, first, second, third, b1, b2, product = (  # no copies, as things are
            tensor.contiguous() for tensor in (x, first, second, third, b1, b2, product)
        )
        constants, tuning = how.kernel, how.tuning
        pixels, seen = how.places[0], constants["TAPS"] * constants["CHANNELS"]
        h1 = first.new_empty(pixels, constants["WIDTH"])
        v2 = torch.empty_like(h1)
        parts = x.new_empty(pixels, seen)
        sums, slope = torch.empty_like(x), torch.empty_like(x)
        with torch.cuda.device_of(x):
            code.first_kernel[(-(-pixels // tuning.first.block),)](
                *(x, first, b1, h1, *how.places), **constants, **tuning.first.options
            )
            code.second_kernel[(-(-pixels // tuning.second.block),)](
                *(x, h1, first, second, third, b1, b2, product, v2, parts, slope, *how.places),
                COPIES=how.filters,
                GROUPS=max(16, power_of_2(constants["CHANNELS"])),
                **how.slots,
                **constants,
                **tuning.second.options,
            )
            _collect(parts, sums, how, 1)
        ctx.save_for_backward(x, first, second, third, b1, product, h1, v2)
        ctx.how = how
        return sums, slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from mintnet.kernels import chip_backward as code

        x, first, second, third, b1, product, h1, v2 = ctx.saved_tensors
        g_sums, g_slope = (gradient.float().contiguous() for gradient in gradients)
        how = ctx.how
        constants, tuning = how.kernel, how.tuning
        width, columns, slots = constants["WIDTH"], constants["COLUMNS"], how.slots["SLOTS"]
        seen = constants["TAPS"] * constants["CHANNELS"]
        pixels = how.places[0]
        inner_blocks, outer_blocks, weight_blocks = (
            -(-pixels // launch.block) for launch in (tuning.inner, tuning.outer, tuning.weight)
        )
        # As many slots as make blocks of 512 bytes a pixel, or one.
        together = max(1, min(power_of_2(slots), 512 // (width * h1.element_size())))
        groups = -(-slots // together)
        inners, outers = min(inner_blocks, tuning.programs), min(outer_blocks, tuning.programs)
        weights = min(weight_blocks, max(1, tuning.programs // groups))
        inner = x.new_empty(inners, width * (width + columns + 1))
        outer = x.new_empty(outers, width * (columns + 1))
        weight = x.new_empty(weights, width * slots * width)
        g_v2, g_x = torch.empty_like(v2), torch.empty_like(x)
        g_seen = x.new_empty(pixels, seen)
        places = how.places
        with torch.cuda.device_of(x):
            code.inner_kernel[(inners,)](
                *(x, v2, first, third, b1, product, g_sums, g_slope, g_v2, inner),
                *(*places, inner_blocks, inners),
                COPIES=how.filters,
                **constants,
                **tuning.inner.options,
            )
            code.outer_kernel[(outers,)](
                *(x, v2, first, second, b1, product, g_slope, g_v2, g_seen, outer),
                *(*places, outer_blocks, outers),
                COPIES=how.filters,
                **how.slots,
                **constants,
                **tuning.outer.options,
            )
            _collect(g_seen, g_x, how, -1)
            code.weight_kernel[(weights, groups)](
                *(h1, g_v2, weight, *places, weight_blocks, weights),
                **how.slots,
                TOGETHER=together,
                **{name: constants[name] for name in ("SIZE", "WIDTH", "PRECISION")},
                **tuning.weight.options,
            )
        dtype = first.dtype
        g_product, g_third, g_b2 = (
            inner.sum(0).to(dtype).split([width * width, width * columns, width])
        )
        g_first, g_b1 = outer.sum(0).to(dtype).split([columns * width, width])
        g_second = weight.sum(0).to(dtype).view(second.shape).permute(0, 3, 1, 2)
        return (
            g_x,
            g_first.view(columns, width)[:seen],
            g_second,
            g_third.view(width, columns)[:, :seen],
            g_b1,
            g_b2,
            g_product.view(width, width),
            None,
        )


def _collect(parts: Tensor, sums: Tensor, how: _How, sign: int) -> None:
    from mintnet.kernels.chip_forward import collect_kernel

    constants = {name: how.kernel[name] for name in ("CHANNELS", "SIZE", "FIRST", "TAPS")}
    block = 256
    grid = (-(-sums.numel() // block),)
    collect_kernel[grid](parts, sums, *how.places, SIGN=sign, **constants, BLOCK=block)
