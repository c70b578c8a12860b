"""Between four images (Appendix C)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mintnet.models import Flow
from mintnet.solvers import Solver

ANGLES = tuple(k * math.pi / 14 for k in range(8))
"""0, π/14, …, 7π/14."""


@torch.no_grad()
def interpolate(flow: Flow, images: Tensor, solver: Solver | None = None) -> Tensor:
    """The 8 × 8 images between four, which stand in the corners, from `codes_between`.

    Shapes: (4, C, H, W) → (64, C, H, W), both uint8.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> four = torch.randint(0, 17, (4, 1, 8, 8), dtype=torch.uint8)
        >>> grid = interpolate(flow, four)
        >>> bool((grid[[0, 7, 56, 63]] == four).all())
        True
    """
    return flow.decode(codes_between(flow, images), solver)


@torch.no_grad()
def codes_between(flow: Flow, images: Tensor) -> Tensor:
    """The codes of the 8 × 8 images between four.

    With zᵢ the codes of the images and φ, φ' from `ANGLES`,

        z = cos φ (cos φ' z₁ + sin φ' z₂) + sin φ (cos φ' z₃ + sin φ' z₄)

    where φ' grows along a row and φ from row to row.

    Shapes: (4, C, H, W) uint8 → (64, ...).

    Examples:
        >>> flow = Flow.preset("digits")
        >>> codes_between(flow, torch.zeros(4, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([64, 4, 4, 4])
    """
    if len(images) != 4:
        raise ValueError(f"expected four images to interpolate between; got {len(images)}")
    z1, z2, z3, z4 = flow.encode(images)
    latents = [
        math.cos(phi) * (math.cos(psi) * z1 + math.sin(psi) * z2)
        + math.sin(phi) * (math.cos(psi) * z3 + math.sin(psi) * z4)
        for phi in ANGLES
        for psi in ANGLES
    ]
    return torch.stack(latents)
