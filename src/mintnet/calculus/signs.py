"""The sign constraint of Mint layers (Eq. 4), as a pure function of weights."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet.calculus.linear import blocks_of


def constrained(w2: Tensor, w1: Tensor, w3: Tensor, channels: int) -> Tensor:
    """V²: W² with diag(V²ᵢⱼ) given the sign of diag(W³ᵢ) diag(W¹ⱼ), all other taps untouched.

    Shapes: w1 (C·K, C, R, R), w2 (C·K, C·K, R, R), w3 (C, C·K, R, R), masked.
    """
    r = w2.shape[-1] // 2
    own1 = blocks_of(w1[:, :, r, r], channels).reshape(-1)  # diag(W¹ⱼ), one for each hidden channel
    own3 = blocks_of(w3[:, :, r, r], channels).reshape(-1)
    centre = w2[:, :, r, r]
    filters = len(own1) // channels
    group = torch.arange(len(own1), device=w2.device) // filters
    own = group[:, None] == group[None, :]
    signed = torch.where(own, centre.abs() * own3.sign()[:, None] * own1.sign()[None, :], centre)
    w2 = w2.clone()
    w2[:, :, r, r] = signed
    return w2
