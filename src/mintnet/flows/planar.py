"""Planar flows: one direction is bent. Outside F: the Jacobian is triangular in no order."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.bijections.base import Bijection
from mintnet.calculus.masks import check_positive
from mintnet.flows.check import checked
from mintnet.solvers import REMEDY, Solution, Solver
from mintnet.solvers.scalar import solve_monotone


class Planar(Bijection):
    r"""A planar flow (Rezende and Mohamed, 2015): y = x + u tanh(w·x + b), with w·u > −1.

    det J = 1 + (w·u) tanh'(w·x + b). Along w the map is one increasing function of a single number,
    which is what the inverse solves: w·y = a + (w·u) tanh(a + b), then x = y − u tanh(a + b).

    Args:
        features: D.

    Shapes: (batch, D) → (batch, D), (batch,).

    Examples:
        >>> planar = Planar(4)
        >>> x = torch.randn(3, 4)
        >>> bool(torch.allclose(planar.inverse(planar(x)[0]), x, atol=1e-5))
        True
    """

    event_shape: tuple[int, ...]

    def __init__(self, features: int) -> None:
        super().__init__()
        check_positive(features=features)
        self.event_shape = (features,)
        self.direction = nn.Parameter(torch.randn(features) / math.sqrt(features))
        self.raw_u = nn.Parameter(0.1 * torch.randn(features) / math.sqrt(features))
        self.bias = nn.Parameter(torch.zeros(()))

    def u(self) -> tuple[Tensor, Tensor]:
        """u, moved along w until w·u > −1, and w·u. Where w is 0 there is nothing to move."""
        w, raw = self.direction, self.raw_u
        square = (w @ w).clamp(min=torch.finfo(w.dtype).tiny)
        product = torch.where(w @ w > 0, F.softplus(w @ raw) - 1, w @ raw)
        return raw + (product - w @ raw) * w / square, product

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, product = self.u()
        h = torch.tanh(x @ self.direction + self.bias)
        return x + h[:, None] * u, torch.log1p(product * (1 - h * h))

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        """By `solve_monotone` along w; other solvers are not used."""
        along, steps = self._along(z)
        value = z - torch.tanh(along + self.bias)[:, None] * self.u()[0]
        count = torch.full((len(z),), steps, device=z.device)
        return checked("Planar", value, z, self.value, count, count)

    def differentiable_inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        self.find(z.detach(), solver).require(REMEDY)
        a, _ = self._along(z.detach())
        u, product = self.u()
        # One Newton step at the root moves nothing, and has the right derivatives.
        h = torch.tanh(a + self.bias)
        slope = (1 + product * (1 - h * h)).detach()
        a = a - (a + product * h - z @ self.direction) / slope
        return z - torch.tanh(a + self.bias)[:, None] * u

    @torch.no_grad()
    def _along(self, z: Tensor) -> tuple[Tensor, int]:
        """a = w·x for each sample, and the Newton steps taken."""
        product, bias = self.u()[1], self.bias
        target = (z @ self.direction).nan_to_num()[None]

        def evaluate(a: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
            h = torch.tanh(a + bias)
            return a + product * h, 1 + product * (1 - h * h)

        least = (1 + product.clamp(max=0)).expand_as(target)
        a, steps = solve_monotone(evaluate, target, target, least, target.abs())
        return a[0], steps
