"""Sylvester flows: a bottleneck of M directions, triangular inside. Outside F as a whole."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from mintnet.bijections.base import Bijection
from mintnet.bijections.triangular import Composed
from mintnet.calculus import UPPER, Dense, Function, Quantity, Tanh
from mintnet.calculus.masks import check_positive
from mintnet.flows.check import checked
from mintnet.solvers import REMEDY, Solution, Solver, Status

Q = TypeVar("Q", bound=Quantity)


class Core(Function):
    r"""Inside the bottleneck: v ↦ v + R tanh(R̃ v + b), in F in the upper order.

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
        return tuple(  # type: ignore[return-value]
            raw.triu(1) + torch.diag(raw.diagonal().tanh()) for raw in (self.left, self.right)
        )

    def forward(self, x: Q) -> Q:
        left, right = self.factors()
        inner = self.h(x.through(Dense(right, self.bias, self.size, UPPER)))
        return x + inner.through(Dense(left, None, self.size, UPPER))  # type: ignore[no-any-return]


class Sylvester(Bijection):
    r"""A Sylvester flow (van den Berg et al., 2018): y = x + Q R tanh(R̃ Qᵀ x + b).

    Q has M orthonormal columns, a product of M reflections. By Sylvester's identity the
    determinant is that of `Core`, a triangular map of the M numbers v = Qᵀ x: det J = Π (1 + rᵢ
    r̃ᵢ tanh'). The inverse solves that map, and leaves the rest of x as it is.

    Args:
        features: D.
        bottleneck: M, at most D.

    Shapes: (batch, D) → (batch, D), (batch,).

    Examples:
        >>> flow = Sylvester(6, bottleneck=3)
        >>> x = torch.randn(2, 6)
        >>> bool(torch.allclose(flow.inverse(flow(x)[0]), x, atol=1e-5))
        True
    """

    event_shape: tuple[int, ...]

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
        like = self.reflections
        size = self.event_shape[0], len(like)
        columns = torch.eye(*size, dtype=like.dtype, device=like.device)
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
        failure = torch.where(inner.converged, int(Status.INACCURATE), inner.status)
        return checked("Sylvester", value, z, self.value, inner.steps, inner.evaluations, failure)

    def differentiable_inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        self.find(z.detach(), solver).require(REMEDY)
        q = self.basis()
        return z + (self.inner.differentiable_inverse(z @ q, solver) - z @ q) @ q.T

    def extra_repr(self) -> str:
        return f"{self.event_shape[0]}, bottleneck={len(self.reflections)}"
