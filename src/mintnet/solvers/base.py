"""What solvers see, and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mintnet import graphs
from mintnet.calculus import Ordering
from mintnet.precision import true_float32
from mintnet.solvers.solution import Solution, Status, checked, merged
from mintnet.solvers.verified import TOLERANCES, verified

if TYPE_CHECKING:
    from mintnet.solvers.levels import LevelMap

Evaluate = Callable[..., tuple[Tensor, Tensor]]  # x ↦ (f(x), diag J(x)), both of the shape of x

REMEDY = "Try the default solver mintnet.Auto(), float64 (layer.double()), or look at "
REMEDY += "layer.solve(z), which returns what was reached instead of raising."


class StructureError(ValueError):
    """A function whose structure a solver cannot follow."""


@dataclass(frozen=True)
class System:
    """The equation f(x) = z of a triangular f, as the solvers see it: no model, no weights.

    ``evaluate`` is x ↦ (f(x), diag J(x)), which takes the ``context`` beside x, one row a sample,
    if there is any; ``start`` is z ↦ x₀. ``expression`` gives the trace of f for solvers that
    follow its structure, and ``levels`` a map that solves level by level, where there is one for x
    of a dtype on a device. ``slope_floor`` gives a lower bound of |diag J| (0 if none is known) and
    the sign of diag J, of the shape of one sample or of one number. ``work`` is how many
    multiplications and additions one ``evaluate`` takes for one sample, roughly; 0 if not known.
    ``near`` is x close to the solution, one row a sample, such as that of a solve in float32.
    """

    name: str
    evaluate: Evaluate
    start: Callable[[Tensor], Tensor]
    ordering: Ordering
    expression: Callable[[], Any] | None = None
    slope_floor: Callable[[], tuple[Tensor, Tensor]] = lambda: (torch.zeros(()), torch.ones(()))
    levels: Callable[[Tensor], LevelMap | None] = lambda x: None
    work: float = 0.0
    context: Tensor | None = None
    near: Tensor | None = None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.evaluate(x) if self.context is None else self.evaluate(x, self.context)

    def first(self, z: Tensor) -> Tensor:
        """Where solvers begin: near the solution if that is known."""
        if self.near is None:
            return self.start(z)
        return torch.where(self.near.isfinite(), self.near, self.start(z))

    def rows(self, chosen: Tensor | slice) -> System:
        context, near = (None if p is None else p[chosen] for p in (self.context, self.near))
        return replace(self, context=context, near=near)


class Solver(ABC):
    """A way to solve f(x) = z: frozen configuration with one method."""

    tolerance: float | None = None
    """Where the user chose it: what counts as verified, and no second solve in float64."""

    def solve(self, system: System, z: Tensor) -> Solution:
        """Solve for each sample of z on its own; the result says which are verified."""
        return verified(
            lambda z, rows: self.attempt(system.rows(rows), z),
            lambda x, rows: system.rows(rows)(x)[0],
            z,
            self.tolerance or TOLERANCES.get(z.dtype, 0.0),
            again=self.tolerance is None,
        )

    def attempt(self, system: System, z: Tensor) -> Solution:
        """`solve` in the arithmetic of z alone: residuals are those that the solver saw."""
        if z.dtype not in TOLERANCES:
            raise ValueError(f"solvers run in float32 or float64; got {z.dtype}. Use z.float().")
        shared = graphs.lock if z.is_cuda else nullcontext()  # graphs share memory
        # What a solve keeps, as graphs, must serve outside of inference mode too.
        with shared, true_float32(), torch.inference_mode(False), torch.no_grad():
            finite, scale = z.flatten(1).isfinite().all(1), z.abs().flatten(1).amax(1)
            # Read back once: on a GPU every look at a value waits for all work before it.
            count, zeros = torch.stack([finite.sum(), (scale == 0).sum()]).tolist()
            if zeros:  # without a scale of their own: what x has to make up for
                tiny = torch.finfo(z.dtype).tiny
                offset = system(torch.zeros_like(z))[0].abs().flatten(1).amax(1).clamp(min=tiny)
                scale = torch.where(scale == 0, offset, scale)
            if count == len(z) > 0:
                return self._solve(system, z, scale)
            none = torch.ones_like(scale)
            nothing = checked(system.name, z, none / 0, none, 0.0, 0, 0, Status.NOT_FINITE)
            if count == 0:
                return nothing
            found = self._solve(system.rows(finite), z[finite], scale[finite])
            return merged(nothing, found, finite)

    @abstractmethod
    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        """Solve for finite z; residuals are measured in units of ``scale``, one a sample."""
