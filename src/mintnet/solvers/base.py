"""What solvers see, and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mintnet import graphs
from mintnet.calculus import Ordering
from mintnet.precision import true_float32
from mintnet.solvers.solution import Solution, Status, merged

Evaluate = Callable[..., tuple[Tensor, Tensor]]
"""x ↦ (f(x), diag J(x)), both of the shape of x."""

TOLERANCES = {torch.float32: 5e-6, torch.float64: 1e-12}
"""A layer is verified when its residual is below this share of the largest |z|."""

SMALL = 0.1
"""Where the largest |z| is below this, |f(0)| may be the unit of residuals."""

REMEDY = (
    "Try the default solver mintnet.Auto(), float64 (layer.double()), or look at "
    "layer.solve(z), which returns what was reached instead of raising."
)


class StructureError(ValueError):
    """A function whose structure a solver cannot follow."""


def no_slope_floor() -> tuple[Tensor, Tensor]:
    """Nothing is known of an increasing function but that it increases."""
    return torch.zeros(()), torch.ones(())


@dataclass(frozen=True)
class System:
    """The equation f(x) = z of a triangular f, as the solvers see it: no model, no weights.

    Attributes:
        name: for messages.
        evaluate: x ↦ (f(x), diag J(x)), both of the shape of x.
        start: z ↦ x₀.
        ordering: the order in which the coordinates depend on one another.
        expression: gives the trace of f, for solvers that follow its structure.
        slope_floor: gives a lower bound of |diag J| (0 if none is known) and the sign of diag J,
            of the shape of one sample or of one number.
        blocks: gives f in channel blocks; None where f has no such structure.
        work: multiplications and additions of one ``evaluate`` for one sample, roughly; 0 if
            they are not known.
    """

    name: str
    evaluate: Evaluate
    start: Callable[[Tensor], Tensor]
    ordering: Ordering
    expression: Callable[[], Any] | None = None
    slope_floor: Callable[[], tuple[Tensor, Tensor]] = no_slope_floor
    blocks: Callable[[], ChannelBlocks | None] = lambda: None
    work: float = 0.0


class ChannelBlocks(ABC):
    """A triangular f whose channels fall into blocks that depend on earlier blocks alone."""

    @property
    @abstractmethod
    def channels(self) -> list[slice]:
        """The channels of each block, in the order in which they are solved."""

    @abstractmethod
    def system(self, block: int) -> System:
        """f restricted to a block; its ``evaluate`` takes x of the block and what is given."""

    @abstractmethod
    def given(self, block: int, known: list[tuple[Tensor, ...]]) -> Tensor | None:
        """What ``evaluate`` of a block takes beside x, from the activations of earlier blocks."""

    @abstractmethod
    def activations(self, block: int, x: Tensor, given: Tensor | None) -> tuple[Tensor, ...]:
        """What later blocks read of a block that is solved."""


def sorted_by(channels: list[slice], values: list[Any]) -> list[Any]:
    """Values of channel blocks in the order of the channels."""
    order = sorted(range(len(channels)), key=lambda index: channels[index].start)
    return [values[index] for index in order]


class Solver(ABC):
    """A way to solve f(x) = z: frozen configuration with one method."""

    def solve(self, system: System, z: Tensor) -> Solution:
        """Solve for each sample of z on its own; the result says which are verified."""
        if z.dtype not in TOLERANCES:
            raise ValueError(f"solvers run in float32 or float64; got {z.dtype}. Use z.float().")
        with graphs.lock if z.is_cuda else nullcontext():  # captured graphs share their memory
            return self._checked(system, z)

    def _checked(self, system: System, z: Tensor) -> Solution:
        """`solve`, with samples that are not finite or very small seen to."""
        finite, largest = z.flatten(1).isfinite().all(1), z.abs().flatten(1).amax(1)
        # Read back once: on a GPU every look at a value waits for all work before it.
        count, small = torch.stack([finite.sum(), (largest < SMALL).sum()]).tolist()
        if count == 0:
            return _nothing_to_solve(system, z)
        with true_float32():
            if count < len(z):
                return _scatter(self._verified(system, z[finite]), finite)
            if small == 0:
                return self._solve(system, z, largest)
            return self._verified(system, z)

    def _verified(self, system: System, z: Tensor) -> Solution:
        """The solution, with a closer look at samples that were not measured by their |z|."""
        scale = reference_scale(lambda x: system.evaluate(x)[0], z, z)
        solution = self._solve(system, z, scale)
        small = solution.converged & (scale > z.abs().flatten(1).amax(1))
        if not bool(small.any()):
            return solution
        # |f(0)| was the unit. Accept what is left only if it is rounding at the solution itself.
        value, target = solution.value[small], z[small]
        y, slope = system.evaluate(value)
        left = (y - target).abs().flatten(1).amax(1)
        rounding = 16 * torch.finfo(z.dtype).eps * (slope * value).abs().flatten(1).amax(1)
        allowed = TOLERANCES[z.dtype] * target.abs().flatten(1).amax(1) + rounding
        status = solution.status.clone()
        status[small] = torch.where(left <= allowed, status[small], int(Status.OUT_OF_STEPS))
        solution = replace(solution, status=status)
        refused = small.index_put((small,), left > allowed)
        if not bool(refused.any()):
            return solution
        # Once more, to the accuracy that their own |z| asks for.
        own = z[refused].abs().flatten(1).amax(1).clamp(min=torch.finfo(z.dtype).tiny)
        return merged(solution, self._solve(system, z[refused], own), refused)

    @abstractmethod
    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        """Solve for finite z; residuals are measured in units of ``scale``, one a sample."""


def reference_scale(forward: Callable[[Tensor], Tensor], z: Tensor, like: Tensor) -> Tensor:
    """What residuals are compared with: the largest |z| of each sample.

    Where that is small, |f(0)| stands in if it is larger: z = 0 is a fair question to a layer
    with biases, and its answer cannot be more accurate than the biases are. ``like`` has the
    shape of inputs. Shape: (batch,).
    """
    largest = z.abs().flatten(1).amax(1)
    small = largest < SMALL
    if bool(small.any()):
        offset = forward(torch.zeros_like(like[:1])).abs().max()
        largest = torch.where(small, torch.maximum(largest, offset), largest)
    return largest.clamp(min=torch.finfo(z.dtype).tiny)


def _scatter(solution: Solution, finite: Tensor) -> Solution:
    """The solution of the finite samples, back among those that could not be tried."""

    def spread(part: Tensor, fill: float) -> Tensor:
        whole = part.new_full((len(finite), *part.shape[1:]), fill)
        whole[finite] = part
        return whole

    trace = solution.trace
    return Solution(
        name=solution.name,
        value=spread(solution.value, float("nan")),
        status=spread(solution.status, Status.NOT_FINITE),
        residual=spread(solution.residual, float("inf")),
        steps=spread(solution.steps, 0),
        evaluations=spread(solution.evaluations, 0),
        trace=None if trace is None else spread(trace.T, float("inf")).T,
    )


def _nothing_to_solve(system: System, z: Tensor) -> Solution:
    """The answer to an empty batch, or to one in which no sample is finite."""
    none = torch.zeros(len(z), dtype=torch.long, device=z.device)
    return Solution(
        name=system.name,
        value=torch.full_like(z, float("nan")),
        status=none + Status.NOT_FINITE,
        residual=torch.full_like(none, float("inf"), dtype=z.dtype),
        steps=none,
        evaluations=none,
    )
