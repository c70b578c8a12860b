"""The sign constraint of Mint layers (Eq. 4), as a pure function of weights."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet.calculus.linear import blocks_of


def constrained(
    w2: Tensor, w1: Tensor, w3: Tensor, channels: int, mask: Tensor | None = None
) -> Tensor:
    """V²: W² with diag(V²ᵢⱼ) given the sign of diag(W³ᵢ) diag(W¹ⱼ), all other taps untouched.

    |w| s = w · (sign(w) s), and signs have no gradient: so mask and constraint are one factor of
    W², and one product forward and one backward are all that they cost.

    Args:
        w2: W², masked unless ``mask`` is given.
        w1: W¹, masked.
        w3: W³, masked.
        channels: C.
        mask: of W², of its shape.

    Shapes: w1 (C·K, C, R, R), w2 (C·K, C·K, R, R), w3 (C, C·K, R, R).
    """
    r = w2.shape[-1] // 2
    with torch.no_grad():
        # diag(W¹ⱼ) and diag(W³ᵢ), one for each hidden channel
        own1 = blocks_of(w1[:, :, r, r], channels).reshape(-1).sign()
        own3 = blocks_of(w3[:, :, r, r], channels).reshape(-1).sign()
        signs = w2[:, :, r, r].sign() * own3[:, None] * own1[None, :]
        group = torch.arange(len(own1), device=w2.device) // (len(own1) // channels)
        centre = torch.arange(w2[0, 0].numel(), device=w2.device) == w2[0, 0].numel() // 2
        changed = (group[:, None] == group[None, :])[:, :, None, None] & centre.view_as(w2[0, 0])
        kept = torch.ones_like(w2) if mask is None else mask.to(w2.dtype)
        factor = torch.where(changed, signs[:, :, None, None], kept)
    return w2 * factor
