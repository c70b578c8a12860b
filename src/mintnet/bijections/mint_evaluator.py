"""Eq. 2 with the diagonal of its Jacobian, evaluated many times with the same weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.calculus import Elementwise
from mintnet.calculus.linear import blocks_of
from mintnet.calculus.value import mix

Triple = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class MintEvaluator:
    r"""x ↦ (L(x), diag J(x)) of a Mint layer.

        L(x)   = t ⊙ x + W³ ⊛ h(W² ⊛ h(W¹ ⊛ x + b¹) + b²) + b³                    (Eq. 2)
        diag J = t + Σᵢ h'(v²ᵢ) Σⱼ Pᵢⱼ h'(v¹ⱼ),   P = diag(W³ᵢ) diag(W²ᵢⱼ) diag(W¹ⱼ) ≥ 0   (Eq. 3)

    where v¹ and v² are the arguments of h. P is made of weights alone, so that nothing of size
    K × K × H × W is formed. Weights are as they act; ``product`` is P, (C, K, K); t is (C, H, W).
    """

    weights: Triple
    biases: Triple
    product: Tensor
    t: Tensor
    h: Elementwise
    upper: bool

    @classmethod
    def of(cls, weights: Triple, biases: Triple, t: Tensor, h: Elementwise, upper: bool) -> Self:
        centre = weights[1].shape[-1] // 2
        own1, own2, own3 = (blocks_of(w[:, :, centre, centre], len(t)) for w in weights)
        w1, w2, w3 = (_channels_last(weight) for weight in weights)
        return cls((w1, w2, w3), biases, own3.mT * own2 * own1.mT, t, h, upper)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """L(x) and diag J(x). Shapes: (batch, C, H, W) twice."""
        b1, b2, b3 = self.biases
        h1, d1 = self.h.value_and_slope(_convolved(_channels_last(x), self.weights[0], b1))
        h2, d2 = self.h.value_and_slope(self._second(h1, b2))
        return self._third(x, h2, b3), self.t + slope_sums(d1, d2, self.product)

    def value(self, x: Tensor) -> Tensor:
        b1, b2, b3 = self.biases
        h1 = self.h.value(_convolved(_channels_last(x), self.weights[0], b1))
        return self._third(x, self.h.value(self._second(h1, b2)), b3)

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


def slope_sums(d1: Tensor, d2: Tensor, product: Tensor) -> Tensor:
    """Σᵢ d2ᵢ Σⱼ Pᵢⱼ d1ⱼ of Eq. 3: (batch, C K, H, W) twice, (C, K, K) → (batch, C, H, W)."""
    copies = product.shape[:2]
    if d1.device.type == "cpu":  # with channels last in memory this is the faster order
        mixed = torch.einsum("bcjhw,cij->bcihw", d1.unflatten(1, copies), product)
    else:
        mixed = mix(d1, product).unflatten(1, copies)
    sums: Tensor = (d2.unflatten(1, copies) * mixed).sum(2)
    return sums.contiguous()


def _convolved(x: Tensor, weight: Tensor, bias: Tensor, padding: tuple[int, ...] = ()) -> Tensor:
    """W ⊛ x plus a bias for each channel."""
    return F.conv2d(x, weight, bias, padding=padding or weight.shape[-1] // 2)


def _channels_last(x: Tensor) -> Tensor:
    """x laid out as convolutions are fastest: with channels last on CPUs."""
    cpu = x.device.type == "cpu"
    return x.contiguous(memory_format=torch.channels_last if cpu else torch.contiguous_format)
