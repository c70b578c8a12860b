"""A bijection run backwards."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet.bijections.base import Bijection
from mintnet.solvers import REMEDY, TOLERANCES, Solution, Solver, Status, relative_residual
from mintnet.solvers.base import reference_scale
from mintnet.solvers.solution import checked


class Inverse(Bijection):
    r"""f⁻¹ of a bijection f: forward solves f(y) = x, with log |det| = − log |det J_f(y)|.

    Forward raises `InversionError` if the solution is not verified. Backwards it evaluates
    f, and checks the answer by solving once more.

    Examples:
        >>> from mintnet import MintLayer
        >>> layer = MintLayer(1, 2, (3, 3)).double()
        >>> x = torch.randn(2, 1, 3, 3, dtype=torch.float64)
        >>> bool(torch.allclose(Inverse(layer)(layer(x)[0])[0], x))
        True
    """

    def __init__(self, inner: Bijection, solver: Solver | None = None) -> None:
        super().__init__()
        self.inner, self.solver = inner, solver
        self.event_shape = inner.output_shape

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        return self.inner.event_shape

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            y = self.inner.differentiable_inverse(x, self.solver)
        else:
            y = self.inner.find(x, self.solver).require(REMEDY)
        return y, -self.inner.transform(y)[1]

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        finite = z.flatten(1).isfinite().all(1)
        value = torch.full_like(z, float("nan"))
        value[finite] = self.inner.transform(z[finite])[0]
        back = self.inner.find(value, solver or self.solver)
        scale = reference_scale(lambda x: self.inner.find(x).value, z, value)
        residual = relative_residual(back.value - z, scale)
        failure = torch.where(back.converged, int(Status.INACCURATE), back.status)
        failure = torch.where(finite, failure, int(Status.NOT_FINITE))
        name = f"the inverse of {type(self.inner).__name__}, run backwards"
        tolerance = TOLERANCES.get(z.dtype, 1e-2)
        return checked(name, value, residual, tolerance, 0, back.evaluations + 1, failure)

    def differentiable_inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        self.find(z.detach(), solver).require(REMEDY)
        return self.inner.transform(z)[0]
