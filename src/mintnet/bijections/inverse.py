"""A bijection run backwards."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mintnet.bijections.base import Bijection
from mintnet.solvers import REMEDY, Solution, Solver, Status
from mintnet.solvers.solution import own_scale, unsolved


class Inverse(Bijection):
    r"""f⁻¹ of a bijection f: forward solves f(y) = x, with log |det| = − log |det J_f(y)|.

    Forward raises `InversionError` if the solution is not verified. Backwards it evaluates
    f, which is verified by solving once more.

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

    @property
    def codomain(self) -> tuple[float, float]:
        return self.inner.domain

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner.solve(x, self.solver).require(REMEDY)
        if torch.is_grad_enabled():
            y = self.inner.attach(y, x)
        return y, -self.inner.transform(y)[1]

    def value(self, x: Tensor) -> Tensor:
        """y without a check: NaN where it is not found."""
        return self.inner.find(x, self.solver).value

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        found = unsolved(f"the inverse of {type(self.inner).__name__}, run backwards", z)
        finite = z.flatten(1).isfinite().all(1)
        value = z.new_full((len(z), *(self.output_shape or z.shape[1:])), float("nan"))
        value[finite] = self.inner.value(z[finite])
        status = torch.where(finite, int(Status.CONVERGED), found.status)
        return replace(found, value=value, status=status, unit=own_scale(z))

    def attach(self, x: Tensor, z: Tensor) -> Tensor:
        return self.inner.transform(z)[0]
