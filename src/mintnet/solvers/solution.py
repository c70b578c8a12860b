"""What a solver returns: a value with its residual check, never a bare number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor


class Status(IntEnum):
    """How the solve of one sample ended."""

    CONVERGED = 0
    OUT_OF_STEPS = 1
    DIVERGED = 2
    NOT_FINITE = 3
    INACCURATE = 4

    @property
    def words(self) -> str:
        """The status for people."""
        return {
            Status.CONVERGED: "converged",
            Status.OUT_OF_STEPS: "ran out of steps",
            Status.DIVERGED: "diverged",
            Status.NOT_FINITE: "had NaN or infinite targets",
            Status.INACCURATE: "lost accuracy between parts that are each verified",
        }[self]


class InversionError(ArithmeticError):
    """An inverse could not be verified. ``solution`` says how far each sample got."""

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution


@dataclass(frozen=True)
class Solution:
    """The answer to f(x) = z for a batch.

    Attributes:
        name: the layer that was inverted.
        value: x, shape of z. Samples that diverged hold NaN, so that nobody takes them for an
            answer; samples that ran out of steps hold the best point seen.
        status: (batch,) a `Status` for each sample.
        residual: (batch,) max |f(x) − z| / max |z| at the returned value; for a sample with
            max |z| below 0.1, |f(0)| takes the place of max |z| if it is larger.
        steps: (batch,) iterations taken.
        evaluations: (batch,) evaluations of f, that of the residual check included.
        parts: the solutions of the layers of a chain, in the order in which they were inverted.
        trace: (steps + 1, batch) the residual after each step, if it was asked for.
    """

    name: str
    value: Tensor
    status: Tensor
    residual: Tensor
    steps: Tensor
    evaluations: Tensor
    parts: tuple[Solution, ...] = ()
    trace: Tensor | None = None

    @property
    def converged(self) -> Tensor:
        """(batch,) which samples are verified."""
        return self.status == Status.CONVERGED

    def __str__(self) -> str:
        return self.message

    @property
    def message(self) -> str:
        """One line: what was solved, how many samples failed, and how."""
        failed = ~self.converged
        count, total = int(failed.sum()), failed.numel()
        if count == 0:
            worst = float(self.residual.max()) if total else 0.0
            return f"{self.name}: all {total} samples verified, worst residual {worst:.1e}"
        ways = [s for s in Status if s != Status.CONVERGED and bool((self.status == s).any())]
        how = ", ".join(f"{int((self.status == s).sum())} {s.words}" for s in ways)
        worst = float(self.residual[failed].max())
        what = f"{how}; worst residual {worst:.1e}"
        return f"{self.name}: {count} of {total} samples not verified ({what})"

    def require(self, remedy: str) -> Tensor:
        """The value, or an `InversionError` with the remedy if any sample is not verified."""
        if bool(self.converged.all()):
            return self.value
        culprit = next((p for p in self.parts if not bool(p.converged.all())), None)
        where = f"{culprit.message}, inside {self.message}" if culprit else self.message
        raise InversionError(f"{where}. {remedy}", self)


def relative_residual(excess: Tensor, scale: Tensor) -> Tensor:
    """max |f(x) − z| / scale for each sample; NaN counts as infinite. Shape: (batch,)."""
    size = excess.abs().flatten(1).amax(1) / scale
    return size.nan_to_num(nan=float("inf"), posinf=float("inf"))


def checked(
    name: str,
    value: Tensor,
    residual: Tensor,
    tolerance: float,
    steps: int | Tensor = 0,
    evaluations: int | Tensor = 1,
    failure: Tensor | None = None,
) -> Solution:
    """Values with their residuals, one a sample: verified where these are within the tolerance.

    The others have the status ``failure``; if none is given, a sample with an infinite residual
    diverged and any other ran out of steps.
    """
    if failure is None:
        failure = torch.where(residual.isfinite(), int(Status.OUT_OF_STEPS), int(Status.DIVERGED))
    status = torch.where(residual <= tolerance, int(Status.CONVERGED), failure)
    none = torch.zeros_like(status)
    return Solution(
        name, fill_failures(value, status), status, residual, none + steps, none + evaluations
    )


def fill_failures(value: Tensor, status: Tensor) -> Tensor:
    """NaN where a sample diverged: such a value must not pass for an answer."""
    lost = (status == Status.DIVERGED) | (status == Status.NOT_FINITE)
    return value.masked_fill(lost.reshape(-1, *(1,) * (value.dim() - 1)), float("nan"))


def rows_of(solution: Solution, rows: Tensor) -> Solution:
    """Some samples of a solution, without its parts."""
    names = ("value", "status", "residual", "steps", "evaluations")
    return Solution(solution.name, *(getattr(solution, name)[rows] for name in names))


def merged(first: Solution, rest: Solution, left: Tensor) -> Solution:
    """The first solution with the samples in ``left`` (batch,) taken from the other."""

    def merge(a: Tensor, b: Tensor) -> Tensor:
        return a.index_put((left,), b.to(a.dtype))

    return Solution(
        name=first.name,
        value=merge(first.value, rest.value),
        status=merge(first.status, rest.status),
        residual=merge(first.residual, rest.residual),
        steps=merge(first.steps, first.steps[left] + rest.steps),
        evaluations=merge(first.evaluations, first.evaluations[left] + rest.evaluations),
    )
