"""A chain of bijections, where orderings meet and the inverse is checked end to end; and f⁻¹."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.bijections.base import Bijection
from mintnet.bijections.permutations import Permutation
from mintnet.solvers import REALS, REMEDY, Solution, Solver, Status
from mintnet.solvers.solution import checked, own_scale

CHAIN_TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-9}  # end to end, in units of max |z|


class Chain(Bijection):
    """f_n ∘ … ∘ f_1: the parts are applied in the order in which they are given.

    The inverse solves them in reverse, each to its rounding floor, and is verified end to end:
    errors that each part forgives may have been amplified by the parts around it.

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
            kind = type(part).__name__
            if not isinstance(part, Bijection):
                raise TypeError(f"Chain(first, second) takes bijections; part {index} is a {kind}")
            if shape is not None and part.event_shape not in (None, shape):
                wanted = f"part {index} ({kind}) expects samples of shape {part.event_shape}"
                raise ValueError(f"{wanted}, but the part before it gives {shape}")
            shape = part.output_shape or shape
        self.parts = nn.ModuleList(parts)
        self.event_shape = next((p.event_shape for p in parts if p.event_shape), None)
        self._output_shape = shape
        self.domain = _decisive(self.leaves()).domain

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        return self._output_shape

    @property
    def codomain(self) -> tuple[float, float]:
        return _decisive(self.leaves()[::-1]).codomain

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

    def refine(self, z: Tensor, near: Solution, solver: Solver | None = None) -> Solution:
        return self.find(z, solver, near.parts)

    @torch.no_grad()
    def find(
        self, z: Tensor, solver: Solver | None = None, near: Iterable[Solution] = ()
    ) -> Solution:
        value, parts = z, list[Solution]()
        for part, close in zip_longest(reversed(self.leaves()), near):
            parts.append(part.seek(value, solver, close))
            value = parts[-1].value
        status = torch.full((len(z),), int(Status.CONVERGED), device=z.device)
        for found in reversed(parts):  # the first failure has the last word
            status = torch.where(found.converged, status, found.status)
        return Solution(
            name=f"a chain of {len(parts)} parts, end to end",
            value=value,
            status=status,
            residual=torch.stack([found.residual for found in parts]).amax(0),
            unit=own_scale(z),
            steps=torch.stack([found.steps for found in parts]).sum(0),
            evaluations=torch.stack([found.evaluations for found in parts]).sum(0),
            parts=tuple(parts),
            remark=next((found.remark for found in parts if found.remark), ""),
        )

    def attach(self, x: Tensor, z: Tensor) -> Tensor:
        with torch.no_grad():
            values = [x]
            for part in (leaves := self.leaves())[:-1]:
                values.append(part.value(values[-1]))
        for part, value in zip(reversed(leaves), reversed(values), strict=True):
            z = part.attach(value, z)
        return z

    def tolerance_of(self, dtype: torch.dtype, solver: Solver | None) -> float:
        own = CHAIN_TOLERANCES.get(dtype, 0.0)
        return max(own, *(leaf.tolerance_of(dtype, None) for leaf in self.leaves()))

    def domain_of(self, dtype: torch.dtype) -> tuple[float, float]:
        return _decisive(self.leaves()).domain_of(dtype)

    def image(self) -> tuple[Tensor | float, Tensor | float]:
        return REALS  # each part looks at its own

    def rows(self, chosen: Tensor) -> Chain:
        leaves = self.leaves()
        parts = [leaf.rows(chosen) for leaf in leaves]
        return self if parts == leaves else Chain(*parts)  # modules are compared by identity

    def leaves(self) -> list[Bijection]:
        """The parts, with chains inside this one taken apart: each is checked end to end once."""
        return [leaf for part in self for leaf in part.leaves()]

    def __iter__(self) -> Iterator[Bijection]:
        return iter(self.parts)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.parts)


def _decisive(leaves: list[Bijection]) -> Bijection:
    """The first leaf that is no permutation: it says what may come in, or out."""
    return next((leaf for leaf in leaves if not isinstance(leaf, Permutation)), leaves[0])


class Inverse(Bijection):
    r"""f⁻¹ of a bijection f: forward solves f(y) = x, with log |det| = − log |det J_f(y)|.

    Forward raises `InversionError` if the solution is not verified. Backwards it evaluates f. The
    inverse of an inverse is f itself: ``Inverse(Inverse(f)) is f``.

    Examples:
        >>> from mintnet import MintLayer
        >>> layer = MintLayer(1, 2, (3, 3)).double()
        >>> x = torch.randn(2, 1, 3, 3, dtype=torch.float64)
        >>> bool(torch.allclose(Inverse(layer)(layer(x)[0])[0], x))
        True
    """

    def __new__(cls, inner: Bijection | None = None, *_: Any, **__: Any) -> Any:
        return inner.inner if isinstance(inner, Inverse) else super().__new__(cls)

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
        name = f"the inverse of {type(self.inner).__name__}, run backwards"
        finite, unit = z.flatten(1).isfinite().all(1), own_scale(z)
        value = z.new_full((len(z), *(self.output_shape or z.shape[1:])), float("nan"))
        value[finite] = self.inner.value(z[finite])
        residual = torch.where(finite, 0.0, float("inf")).to(z)
        return checked(name, value, residual, unit, 0.0, failure=Status.NOT_FINITE)

    def attach(self, x: Tensor, z: Tensor) -> Tensor:
        return self.inner.transform(z)[0]
