"""Planar and Sylvester flows: some directions are bent. Outside F: triangular in no order."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.bijections.base import Bijection
from mintnet.bijections.triangular import Composed, Q
from mintnet.calculus import UPPER, Dense, Function, Tanh
from mintnet.calculus.masks import check_positive
from mintnet.flows.check import checked
from mintnet.solvers import REMEDY, Solution, Solver, Wavefront
from mintnet.solvers.gradient import attach_gradient


class Planar(Bijection):
    """A planar flow (Rezende and Mohamed, 2015): y = x + u tanh(w·x + b), with w·u > −1.

    det J = 1 + (w·u) tanh'(w·x + b). Along w the map is one increasing function of a single number,
    which is what the inverse solves: w·y = a + (w·u) tanh(a + b), then x = y − u tanh(a + b).

    Examples:
        >>> planar, x = Planar(4), torch.randn(3, 4)
        >>> bool(torch.allclose(planar.inverse(planar(x)[0]), x, atol=1e-5))
        True
    """

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

    def along(self) -> Composed:
        """The increasing map of a = w·x alone: a ↦ a + (w·u) tanh(a + b)."""
        product = self.u()[1]
        return Composed(lambda a: a + product * Tanh()(a + self.bias), (1,), insist=True)

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        """One increasing equation along w, by bracketed Newton steps if no solver is given."""
        inner = self.along().find((z @ self.direction)[:, None], solver or Wavefront())
        value = z - torch.tanh(inner.value + self.bias) * self.u()[0]
        return checked(self, value, z, inner.steps, inner.evaluations, inner.status)

    def differentiable_inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        x = self.find(z.detach(), solver).require(REMEDY)
        a, target = (x @ self.direction)[:, None], (z @ self.direction)[:, None]
        a = attach_gradient(a, target, self.along().evaluate, "Planar")
        return z - torch.tanh(a + self.bias) * self.u()[0]


class Core(Function):
    """Inside the bottleneck: v ↦ v + R tanh(R̃ v + b), in F in the upper order.

    R and R̃ are upper triangular with |diagonal| < 1, so that slopes are 1 + r r̃ tanh' > 0.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.left = nn.Parameter(0.1 * torch.randn(size, size) / size)
        self.right = nn.Parameter(torch.randn(size, size) / size)
        self.bias = nn.Parameter(torch.zeros(size))
        self.h = Tanh()

    def factors(self) -> tuple[Tensor, Tensor]:
        """R and R̃."""
        weights = self.left, self.right
        left, right = (raw.triu(1) + torch.diag(raw.diagonal().tanh()) for raw in weights)
        return left, right

    def forward(self, x: Q) -> Q:
        left, right = self.factors()
        inner = self.h(x.through(Dense(right, self.bias, self.size, UPPER)))
        return x + inner.through(Dense(left, None, self.size, UPPER))  # type: ignore[no-any-return]


class Sylvester(Bijection):
    """A Sylvester flow (van den Berg et al., 2018): y = x + Q R tanh(R̃ Qᵀ x + b).

    Q has M orthonormal columns, a product of M reflections. By Sylvester's identity the
    determinant is that of `Core`, a triangular map of the M numbers v = Qᵀ x: det J = Π (1 + rᵢ
    r̃ᵢ tanh'). The inverse solves that map, and leaves the rest of x as it is.

    ``features`` is D, ``bottleneck`` M. Shapes: (batch, D) → (batch, D), (batch,).

    Examples:
        >>> flow, x = Sylvester(6, bottleneck=3), torch.randn(2, 6)
        >>> bool(torch.allclose(flow.inverse(flow(x)[0]), x, atol=1e-5))
        True
    """

    def __init__(self, features: int, bottleneck: int) -> None:
        super().__init__()
        check_positive(features=features, bottleneck=bottleneck)
        if bottleneck > features:
            raise ValueError(
                f"the bottleneck can have at most {features} directions, as many as there are "
                f"features; got {bottleneck}"
            )
        self.event_shape = (features,)
        self.reflections = nn.Parameter(torch.randn(bottleneck, features))
        self.core = Core(bottleneck)
        self.inner = Composed(self.core, (bottleneck,))

    def basis(self) -> Tensor:
        """Q, (D, M)."""
        raw, shape = self.reflections, self.reflections.T.shape
        columns = torch.eye(*shape, dtype=raw.dtype, device=raw.device)
        for v in self.reflections:
            columns = columns - torch.outer(v, v @ columns) * (2 / (v @ v))
        return columns

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, (left, right) = self.basis(), self.core.factors()
        h = torch.tanh(x @ (q @ right.T) + self.core.bias)
        slope = (1 - h * h) * left.diagonal() * right.diagonal()
        return x + h @ (q @ left).T, torch.log1p(slope).sum(1)

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        q = self.basis()
        inner = self.inner.find(z @ q, solver)
        value = z + (inner.value - z @ q) @ q.T
        return checked(self, value, z, inner.steps, inner.evaluations, inner.status)

    def differentiable_inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        self.find(z.detach(), solver).require(REMEDY)
        q = self.basis()
        return z + (self.inner.differentiable_inverse(z @ q, solver) - z @ q) @ q.T
