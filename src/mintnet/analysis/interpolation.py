"""Between four images (Appendix C)."""

from math import cos, pi, sin

import torch
from torch import Tensor

from mintnet.models import Flow
from mintnet.solvers import Solver

ANGLES = tuple(k * pi / 14 for k in range(8))  # 0, π/14, …, 7π/14


@torch.no_grad()
def interpolate(flow: Flow, images: Tensor, solver: Solver | None = None) -> Tensor:
    """The 8 × 8 images between four, which stand in the corners: uint8 (4, …) → (64, …).

    Examples:
        >>> flow = Flow.preset("digits")
        >>> four = torch.randint(0, 17, (4, 1, 8, 8), dtype=torch.uint8)
        >>> bool((interpolate(flow, four)[[0, 7, 56, 63]] == four).all())
        True
    """
    return flow.decode(codes_between(flow, flow.encode(images)), solver)


def codes_between(flow: Flow, codes: Tensor) -> Tensor:
    """The 8 × 8 codes between four, (4, …) → (64, …), as Gaussian ones are mixed.

    With φ' that grows along a row and φ from row to row, both from `ANGLES`,

        z = cos φ (cos φ' z₁ + sin φ' z₂) + sin φ (cos φ' z₃ + sin φ' z₄)
    """
    if len(codes) != 4:
        raise ValueError(f"expected four images to interpolate between; got {len(codes)}")
    z1, z2, z3, z4 = flow.base.to_normal(codes)
    rows = [(cos(psi) * z1 + sin(psi) * z2, cos(psi) * z3 + sin(psi) * z4) for psi in ANGLES]
    between = torch.stack([cos(phi) * a + sin(phi) * b for phi in ANGLES for a, b in rows])
    return flow.base.from_normal(between)
