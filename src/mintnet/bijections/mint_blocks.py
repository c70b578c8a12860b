"""A Mint layer in blocks of channels, each a Mint layer of its own given those before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.calculus.value import mix
from mintnet.solvers.blocks import Blocks, Evaluate, Solved

MOST = 4
"""Blocks of a layer: more would be small convolutions, which cost more than their work."""


def wants_channels_last(weight: Tensor) -> bool:
    """Whether hidden layers lie with channels last, which is faster on CPUs."""
    return weight.device.type == "cpu"


def slope_sums(d1: Tensor, d2: Tensor, product: Tensor, last: bool = False) -> Tensor:
    """Σᵢ d2ᵢ Σⱼ Pᵢⱼ d1ⱼ, the part of diag J (Eq. 3) that depends on x.

    Shapes: (batch, C K, H, W) twice, (C, K, K) → (batch, C, H, W). ``last`` is for hidden layers
    with channels last in memory.

    Examples:
        >>> d1, d2 = torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0])
        >>> product = torch.tensor([[[1.0, 1.0], [0.0, 1.0]]])
        >>> slope_sums(d1.reshape(1, 2, 1, 1), d2.reshape(1, 2, 1, 1), product).item()
        46.0
    """
    copies = product.shape[:2]
    if not last:
        sums: Tensor = (d2 * mix(d1, product)).unflatten(1, copies).sum(2)
        return sums
    mixed = torch.einsum("bcjhw,cij->bcihw", d1.unflatten(1, copies), product)
    sums = (d2.unflatten(1, copies) * mixed).sum(2)
    return sums.contiguous()


@dataclass(frozen=True)
class MintBlocks(Blocks):
    r"""Eq. 2 with the channels in blocks, in which all masks are triangular:

    .. code-block:: text

        f(x_g) = t_g ⊙ x_g + W³_gg ⊛ h(W²_gg ⊛ h(W¹_gg ⊛ x_g + a_g) + b_g) + c_g

    a_g, b_g and c_g are the biases and what the blocks before g bring: a_g from their x, b_g and
    c_g from their hidden layers. a_g and b_g are ``given`` together, and c_g is the offset.

    Args:
        weights: W¹, W² and W³ as they act.
        biases: b¹, b² and b³.
        product: what mixes slopes, (C, K, K).
        t: (C, H, W).
        h: v ↦ h(v), h'(v).
        upper: whether the last channels come first.
    """

    weights: tuple[Tensor, Tensor, Tensor]
    biases: tuple[Tensor, Tensor, Tensor]
    product: Tensor
    t: Tensor
    h: Callable[[Tensor], tuple[Tensor, Tensor]]
    upper: bool

    @property
    def channels(self) -> list[slice]:
        """Of each block, in the order in which they are solved."""
        count = len(self.t)
        size = -(-count // MOST)
        slices = [slice(first, min(first + size, count)) for first in range(0, count, size)]
        return slices[::-1] if self.upper else slices

    def before(self, index: int) -> slice:
        """The channels of all blocks before this one: they lie side by side."""
        here = self.channels[index]
        return slice(here.stop, len(self.t)) if self.upper else slice(0, here.start)

    def hidden(self, channels: slice) -> slice:
        """The hidden channels that belong to channels."""
        copies = self.product.shape[-1]
        return slice(channels.start * copies, channels.stop * copies)

    def part(self, out: slice, into: slice) -> tuple[Tensor, Tensor, Tensor]:
        """What W¹, W² and W³ bring from some channels to others."""
        (w1, w2, w3), to, of = self.weights, self.hidden(out), self.hidden(into)
        layout = torch.channels_last if wants_channels_last(w1) else torch.contiguous_format
        parts = w1[to, into], w2[to, of], w3[out, of]
        return tuple(weight.contiguous(memory_format=layout) for weight in parts)  # type: ignore[return-value]

    def start(self, index: int, z: Tensor) -> Tensor:
        return z / self.t[self.channels[index]]

    def evaluator(self, index: int) -> Evaluate:
        channels = self.channels[index]
        (w1, w2, w3), t, product = self.part(channels, channels), self.t[channels], self.product
        product, radius, last = product[channels], w2.shape[-1] // 2, wants_channels_last(w2)
        h = self.h  # and not all weights with it

        def evaluate(x: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
            a, b = given.chunk(2, 1)
            h1, d1 = h(F.conv2d(x, w1, padding=radius) + a)
            h2, d2 = h(F.conv2d(h1, w2, padding=radius) + b)
            y = t * x + F.conv2d(h2, w3, padding=radius)
            return y, t + slope_sums(d1, d2, product, last)

        return evaluate

    def begin(self, z: Tensor) -> MintSolved:
        return MintSolved(self, z)


class MintSolved(Solved):
    """x and the hidden layers of the blocks that are solved."""

    def __init__(self, blocks: MintBlocks, z: Tensor) -> None:
        self.blocks, self.z, self.index = blocks, z, 0
        self.known: list[tuple[Tensor, Tensor, Tensor]] = []

    def given(self) -> tuple[Tensor, Tensor]:
        """a and b, one above the other, and c. Shapes: (batch, 2 K channels, H, W), as of x."""
        blocks, channels = self.blocks, self.blocks.channels[self.index]
        b1, b2, b3 = blocks.biases
        hidden, batch, size = blocks.hidden(channels), len(self.z), self.z.shape[2:]
        biases = [b1[hidden], b2[hidden], b3[channels]]
        if not self.known:
            a, b, c = (bias[:, None, None].expand(batch, -1, *size) for bias in biases)
            return torch.cat([a, b], 1), c
        order = reversed(self.known) if blocks.upper else self.known
        inputs = [torch.cat(parts, 1) for parts in zip(*order, strict=True)]
        weights = blocks.part(channels, blocks.before(self.index))
        radius = weights[0].shape[-1] // 2
        a, b, c = (
            F.conv2d(u, weight, bias, padding=radius)
            for u, weight, bias in zip(inputs, weights, biases, strict=True)
        )
        return torch.cat([a, b], 1), c

    def add(self, x: Tensor, given: Tensor) -> None:
        """Keep x and its hidden layers."""
        channels = self.blocks.channels[self.index]
        w1, w2, _ = self.blocks.part(channels, channels)
        radius, (a, b) = w2.shape[-1] // 2, given.chunk(2, 1)
        h1 = self.blocks.h(F.conv2d(x, w1, padding=radius) + a)[0]
        h2 = self.blocks.h(F.conv2d(h1, w2, padding=radius) + b)[0]
        self.known.append((x, h1, h2))
        self.index += 1
