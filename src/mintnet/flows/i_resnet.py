"""i-ResNet: a residual block made invertible by a Lipschitz constant below 1. Outside F."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mintnet.bijections.base import Bijection
from mintnet.calculus import LOWER
from mintnet.calculus.masks import check_positive
from mintnet.flows.networks import check_shape
from mintnet.flows.spectral import SpectralLinear
from mintnet.solvers import (
    REMEDY,
    Auto,
    FixedPoint,
    ResidualIteration,
    Solution,
    Solver,
    System,
    attach_gradient,
)

STEPS = 2000
"""Iterations of the inverse at most: with a Lipschitz constant of 0.97 float64 needs 1200."""


class IResNetBlock(Bijection):
    r"""y = x + g(x) with Lip(g) < 1 (Behrmann et al., 2019).

    g has three spectrally normalized layers with ELU between them. log |det J| is the series
    tr(J_g) − tr(J_g²)/2 + …, cut after ``terms`` and with each trace *estimated* by vᵀ J_gᵏ v for
    random v: it changes from call to call, with a small bias. The inverse is the fixed point of
    x ← y − g(x).

    Args:
        shape: of one sample, (C, H, W) or (D,).
        hidden: the width of g.
        coefficient: c, the bound of each layer; Lip(g) ≤ c³.
        terms: of the series.
        probes: random vectors for each sample, of which the mean is taken.

    Examples:
        >>> block = IResNetBlock((4,), hidden=8)
        >>> x = torch.randn(3, 4)
        >>> bool(torch.allclose(block.inverse(block(x)[0]), x, atol=1e-4))
        True
    """

    event_shape: tuple[int, ...]

    def __init__(
        self,
        shape: tuple[int, ...],
        hidden: int = 64,
        coefficient: float = 0.97,
        terms: int = 8,
        probes: int = 1,
    ) -> None:
        super().__init__()
        check_shape(shape)
        check_positive(hidden=hidden, terms=terms, probes=probes)
        if not 0 < coefficient < 1:
            raise ValueError(
                "coefficient must lie between 0 and 1, or the block need not be invertible; got "
                f"{coefficient}"
            )
        self.event_shape = tuple(shape)
        self.coefficient, self.terms, self.probes = coefficient, terms, probes
        inside = (hidden, *shape[1:])
        sizes = ((shape, hidden, 3), (inside, hidden, 1), (inside, shape[0], 3))
        parts: list[nn.Module] = []
        for into, out, kernel in sizes:
            parts += [SpectralLinear(into, out, kernel, coefficient), nn.ELU()]
        self.g = nn.Sequential(*parts[:-1])

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wanted = torch.is_grad_enabled()
        with torch.enable_grad():
            at = x if x.requires_grad and wanted else x.detach().requires_grad_()
            g = self.g(at)
            log_det = self._series(g, at, wanted)
        return (x + g, log_det) if wanted else (x + g.detach(), log_det.detach())

    def _series(self, g: Tensor, at: Tensor, wanted: bool) -> Tensor:
        """Σ (−1)ᵏ⁺¹ vᵀ J_gᵏ v / k, the mean over the probes. Shape: (batch,)."""
        total = g.new_zeros(len(g))
        for _ in range(self.probes):
            v = torch.randn_like(at)
            w = v
            for k in range(1, self.terms + 1):
                (w,) = torch.autograd.grad(g, at, w, create_graph=wanted, retain_graph=True)
                total = total - (-1) ** k * (w * v).flatten(1).sum(1) / k
        return total / self.probes

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        """The fixed point x ← z − g(x), which `Auto` means here and `FixedPoint` damps by its step.

        Raises ValueError for other solvers: they need a triangular Jacobian.
        """
        if solver is None or isinstance(solver, Auto):
            solver = ResidualIteration(STEPS)
        if not isinstance(solver, ResidualIteration | FixedPoint):
            raise ValueError(
                "an IResNetBlock is not triangular: it takes ResidualIteration(), FixedPoint() or "
                f"Auto(); got {solver!r}"
            )
        return solver.solve(System("IResNetBlock", self._evaluate, torch.clone, LOWER), z)

    def _evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + self.g(x), torch.ones_like(x)

    def differentiable_inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        x = self.find(z.detach(), solver).require(REMEDY)
        return attach_gradient(x, z, self._evaluate, "IResNetBlock", max_steps=STEPS)

    def extra_repr(self) -> str:
        return f"{self.event_shape}, Lipschitz bound {self.coefficient**3:.3g}"
