"""Eq. 2 with the diagonal of its Jacobian, evaluated many times with the same weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.calculus import Elementwise, Ordering
from mintnet.calculus.linear import blocks_of
from mintnet.calculus.value import mix
from mintnet.solvers import ChannelBlocks, System
from mintnet.solvers.base import sorted_by

Triple = tuple[Tensor, Tensor, Tensor]

MOST_BLOCKS = 4
"""Channel blocks of a layer: more would be small convolutions, which cost more than their work."""


@dataclass(frozen=True)
class MintEvaluator:
    r"""x ↦ (L(x), diag J(x)) for all channels of a Mint layer or for a block of them.

        L(x)   = t ⊙ x + W³ ⊛ h(W² ⊛ h(W¹ ⊛ x + b¹) + b²) + b³                    (Eq. 2)
        diag J = t + Σᵢ h'(v²ᵢ) Σⱼ Pᵢⱼ h'(v¹ⱼ),   P = diag(W³ᵢ) diag(W²ᵢⱼ) diag(W¹ⱼ) ≥ 0   (Eq. 3)

    where v¹ and v² are the arguments of h. P is made of weights alone, so that nothing of size
    K × K × H × W is formed. All masks are triangular in channel blocks too: for a block, the
    contributions of earlier blocks to the three sums are ``given`` and stand in for b¹, b² and b³.
    The weights are as they act; ``product`` is P, (C, K, K), and t has the shape (C, H, W).
    """

    weights: Triple
    biases: Triple
    product: Tensor
    t: Tensor
    h: Elementwise
    upper: bool

    @classmethod
    def of(cls, weights: Triple, biases: Triple, t: Tensor, h: Elementwise, upper: bool) -> Self:
        """The evaluator of a whole layer."""
        centre = weights[1].shape[-1] // 2
        own1, own2, own3 = (blocks_of(w[:, :, centre, centre], len(t)) for w in weights)
        return cls(_laid_out(weights), biases, own3.mT * own2 * own1.mT, t, h, upper)

    def __call__(self, x: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """L(x) and diag J(x). Shapes: (batch, C, H, W) twice."""
        b1, b2, b3 = self._offsets(given)
        h1, d1 = self.h.value_and_slope(_convolved(_channels_last(x), self.weights[0], b1))
        h2, d2 = self.h.value_and_slope(self._second(h1, b2))
        return self._third(x, h2, b3), self.t + slope_sums(d1, d2, self.product)

    def value(self, x: Tensor) -> Tensor:
        return self._third(x, self.hidden(x)[1], self.biases[2])

    def hidden(self, x: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        b1, b2, _ = self._offsets(given)
        h1 = self.h.value(_convolved(_channels_last(x), self.weights[0], b1))
        return h1, self.h.value(self._second(h1, b2))

    def _offsets(self, given: Tensor | None) -> tuple[Tensor, ...]:
        width = len(self.product) * self.product.shape[-1]
        return self.biases if given is None else given.split([width, width, len(self.t)], 1)

    def _second(self, h1: Tensor, b2: Tensor) -> Tensor:
        w2 = self.weights[1]
        if len(self.t) > 1:
            return _convolved(h1, w2, b2)
        # Of a single channel the mask leaves the rows up to the centre: compute no others.
        radius = w2.shape[-1] // 2
        border = (0, 0, 0, radius) if self.upper else (0, 0, radius, 0)
        rows = slice(radius, None) if self.upper else slice(radius + 1)
        return _convolved(F.pad(h1, border), w2[:, :, rows], b2, (0, radius))

    def _third(self, x: Tensor, h2: Tensor, b3: Tensor) -> Tensor:
        return self.t * x + _convolved(h2, self.weights[2], b3).contiguous()

    @property
    def kind(self) -> Hashable:
        """What two evaluators must share to be the same function of x and their tensors."""
        return "MintEvaluator", repr(self.h), self.upper

    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.weights, *self.biases, self.product, self.t)

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        w1, w2, w3, b1, b2, b3, product, t = tensors
        return replace(self, weights=(w1, w2, w3), biases=(b1, b2, b3), product=product, t=t)


@dataclass(frozen=True)
class MintBlocks(ChannelBlocks):
    """A Mint layer in channel blocks: each is a Mint layer, given those before it."""

    whole: MintEvaluator
    name: str
    ordering: Ordering

    @property
    def channels(self) -> list[slice]:
        count = len(self.whole.t)
        size = -(-count // MOST_BLOCKS)
        slices = [slice(first, min(first + size, count)) for first in range(0, count, size)]
        return slices[::-1] if self.whole.upper else slices

    @cached_property
    def evaluators(self) -> list[MintEvaluator]:
        found, (b1, b2, b3) = [], self.whole.biases
        for own in self.channels:
            weights, hidden = _laid_out(self._weights(own, own)), self._hidden(own)
            biases, product = (b1[hidden], b2[hidden], b3[own]), self.whole.product[own]
            t = self.whole.t[own]
            found.append(replace(self.whole, weights=weights, biases=biases, product=product, t=t))
        return found

    def system(self, block: int) -> System:
        evaluate, name = self.evaluators[block], f"{self.name}, channel block {block}"
        return System(name, evaluate, lambda z: z / evaluate.t, self.ordering)

    def given(self, block: int, known: list[tuple[Tensor, ...]]) -> Tensor | None:
        """b¹, b² and b³ with what earlier blocks add to them, one above the other."""
        if not known:
            return None
        own, before = self.channels[block], self.channels[:block]
        seen = slice(min(c.start for c in before), max(c.stop for c in before))
        inputs = [torch.cat(parts, 1) for parts in zip(*sorted_by(before, known), strict=True)]
        weights, biases = _laid_out(self._weights(own, seen)), self.evaluators[block].biases
        parts = zip(inputs, weights, biases, strict=True)
        return torch.cat([_convolved(_channels_last(u), w, b) for u, w, b in parts], 1)

    def activations(self, block: int, x: Tensor, given: Tensor | None) -> tuple[Tensor, ...]:
        """x and both hidden layers of a block: what W¹, W² and W³ of later blocks read."""
        return (x, *self.evaluators[block].hidden(x, given))

    def _hidden(self, channels: slice) -> slice:
        copies = self.whole.product.shape[-1]
        return slice(channels.start * copies, channels.stop * copies)

    def _weights(self, out: slice, into: slice) -> Triple:
        """The parts of W¹, W² and W³ that lead from some channels to others."""
        (w1, w2, w3), to, of = self.whole.weights, self._hidden(out), self._hidden(into)
        return w1[to, into], w2[to, of], w3[out, of]


def slope_sums(d1: Tensor, d2: Tensor, product: Tensor) -> Tensor:
    """Σᵢ d2ᵢ Σⱼ Pᵢⱼ d1ⱼ, the part of diag J (Eq. 3) that depends on x.

    Shapes: (batch, C K, H, W) twice, (C, K, K) → (batch, C, H, W).
    """
    copies = product.shape[:2]
    if d1.device.type == "cpu":  # with channels last in memory this is the faster order
        mixed = torch.einsum("bcjhw,cij->bcihw", d1.unflatten(1, copies), product)
    else:
        mixed = mix(d1, product).unflatten(1, copies)
    sums: Tensor = (d2.unflatten(1, copies) * mixed).sum(2)
    return sums.contiguous()


def _convolved(x: Tensor, weight: Tensor, offset: Tensor, padding: tuple[int, ...] = ()) -> Tensor:
    """W ⊛ x plus a bias for each channel, or plus a whole tensor."""
    size = padding or weight.shape[-1] // 2
    if offset.dim() == 1:
        return F.conv2d(x, weight, offset, padding=size)
    return F.conv2d(x, weight, padding=size) + offset


def _channels_last(x: Tensor) -> Tensor:
    """x laid out as convolutions are fastest: with channels last on CPUs."""
    cpu = x.device.type == "cpu"
    return x.contiguous(memory_format=torch.channels_last if cpu else torch.contiguous_format)


def _laid_out(weights: Triple) -> Triple:
    w1, w2, w3 = (_channels_last(weight) for weight in weights)
    return w1, w2, w3
