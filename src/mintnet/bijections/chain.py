"""A chain of bijections: where orderings meet, and where the inverse is checked end to end."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mintnet.bijections.base import Bijection
from mintnet.precision import true_float32
from mintnet.solvers import REMEDY, Solution, Solver, Status, relative_residual
from mintnet.solvers.base import reference_scale
from mintnet.solvers.solution import fill_failures

CHAIN_TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-9}
"""A chain is verified when its end-to-end residual is below this share of the largest |z|."""


class Chain(Bijection):
    """f_n ∘ … ∘ f_1: the parts are applied in the order in which they are given.

    The log-determinant is the sum of theirs. The inverse solves them in reverse, each to its
    rounding floor, then runs the result forward once more: errors that each part forgives may
    have been amplified by the parts around it, and `inverse` raises on that too.

    Examples:
        >>> from mintnet import MintLayer, Squeeze
        >>> chain = Chain(MintLayer(1, 4, (4, 4)), Squeeze(2, (1, 4, 4)))
        >>> z, log_det = chain(torch.randn(3, 1, 4, 4))
        >>> z.shape
        torch.Size([3, 4, 2, 2])
    """

    def __init__(self, *parts: Bijection) -> None:
        super().__init__()
        if not parts:
            raise ValueError("a chain needs at least one bijection")
        shape = None
        for index, part in enumerate(parts):
            if not isinstance(part, Bijection):
                raise TypeError(
                    f"a chain takes bijections, Chain(first, second); part {index} is a "
                    f"{type(part).__name__}"
                )
            if shape is not None and part.event_shape not in (None, shape):
                raise ValueError(
                    f"part {index} ({type(part).__name__}) expects samples of shape "
                    f"{part.event_shape}, but the part before it gives {shape}"
                )
            shape = part.output_shape or shape
        self.parts = nn.ModuleList(parts)
        self.event_shape = next((p.event_shape for p in parts if p.event_shape), None)
        self._output_shape = shape
        # Permutations hand a domain on to what follows them.
        first = next((p for p in self.leaves() if not p.permutes), parts[0])
        self.domain = first.domain

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        return self._output_shape

    @property
    def codomain(self) -> tuple[float, float]:
        leaves = self.leaves()
        return next((p for p in reversed(leaves) if not p.permutes), leaves[-1]).codomain

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(x.shape[0])
        for part in self:
            x, log_det = part.transform(x)
            total = total + log_det
        return x, total

    def value(self, x: Tensor) -> Tensor:
        for part in self:
            x = part.value(x)
        return x

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        value, solutions = z, []
        for part in reversed(self.leaves()):
            solution = part.find(value, solver)
            solutions.append(solution)
            value = solution.value
        return self._checked(z, value, tuple(solutions))

    def differentiable_inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        x = z
        for part in reversed(self.leaves()):
            x = part.differentiable_inverse(x, solver)
        self._checked(z, x, ()).require(REMEDY)
        return x

    def leaves(self) -> list[Bijection]:
        """The parts, with chains inside this one taken apart: each is checked end to end once."""
        return [leaf for part in self for leaf in part.leaves()]

    def __iter__(self) -> Iterator[Bijection]:
        for part in self.parts:
            assert isinstance(part, Bijection)
            yield part

    def __len__(self) -> int:
        return len(self.parts)

    @torch.no_grad()
    def _checked(self, z: Tensor, x: Tensor, solutions: tuple[Solution, ...]) -> Solution:
        """The end-to-end residual, and for each sample the first thing that went wrong."""
        with true_float32():
            scale = reference_scale(self.value, z, x)
            residual = relative_residual(self.value(x) - z, scale)
        status = torch.where(
            residual <= CHAIN_TOLERANCES.get(z.dtype, 0.0),
            int(Status.CONVERGED),
            int(Status.INACCURATE),
        )
        for solution in reversed(solutions):  # the first failure has the last word
            status = torch.where(solution.converged, status, solution.status)
        none = torch.zeros_like(status)
        return Solution(
            name=f"a chain of {len(self.leaves())} parts, end to end",
            value=fill_failures(x, status),
            status=status,
            residual=residual,
            steps=sum((s.steps for s in solutions), none),
            evaluations=sum((s.evaluations for s in solutions), none),
            parts=solutions,
        )
