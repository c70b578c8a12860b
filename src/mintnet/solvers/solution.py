"""What a solver returns: a value with its residual check, never a bare number."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    NO_PREIMAGE = 5
    DISAGREES = 6

    @property
    def words(self) -> str:
        return {
            Status.CONVERGED: "converged",
            Status.OUT_OF_STEPS: "ran out of steps",
            Status.DIVERGED: "diverged",
            Status.NOT_FINITE: "had NaN or infinite targets",
            Status.INACCURATE: "are as near as rounding lets them come, which is not enough",
            Status.NO_PREIMAGE: "had targets outside of the image, which no x gives",
            Status.DISAGREES: "got an x from `invert` that `transform` does not take back to z",
        }[self]


WIDER = "Solve in float64, with layer.double() and z.double(), and leave x in float64. "
ADVICE = {  # to people, where all samples that are not verified failed in this way
    Status.INACCURATE: f"No x of this dtype near the solution meets this z. {WIDER}Where 12 digits "
    "are too many in float64, choose how many count: mintnet.FixedPoint(tolerance=1e-6).",
    Status.DISAGREES: "Either z is beyond what `transform` gives for numbers of this dtype, or "
    "`invert` is not its inverse: compare their formulas, shift and scale in the opposite order.",
}


class InversionError(ArithmeticError):
    """An inverse could not be verified. ``solution`` says how far each sample got."""

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution


FIELDS = ("value", "status", "residual", "unit", "steps", "evaluations")  # with one row a sample


@dataclass(frozen=True)
class Solution:
    """The answer to f(x) = z for a batch.

    Attributes:
        name: the layer that was inverted.
        value: x, shape of z. Samples that diverged hold NaN, so that nobody takes them for an
            answer; samples that ran out of steps hold the best point seen.
        status: (batch,) a `Status` for each sample.
        residual: (batch,) max |f(x) − z| / unit at the returned value.
        unit: (batch,) what residuals are measured in: max |z|, or max |f(0)| where z = 0.
        steps, evaluations: (batch,) iterations taken, and evaluations of f by the solver.
        parts: the solutions of the layers of a chain, in the order in which they were inverted:
            what each solver found in its own arithmetic.
        trace: (steps + 1, batch) the residual after each step, if it was asked for.
        remark: what to say to people instead of a remedy, where there is none.
    """

    name: str
    value: Tensor
    status: Tensor
    residual: Tensor
    unit: Tensor
    steps: Tensor
    evaluations: Tensor
    parts: tuple[Solution, ...] = ()
    trace: Tensor | None = None
    remark: str = ""

    @property
    def converged(self) -> Tensor:
        """(batch,) which samples are verified."""
        return self.status == Status.CONVERGED

    @property
    def absolute_residual(self) -> Tensor:
        """(batch,) max |f(x) − z|."""
        return self.residual * self.unit

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
        counts = {s: int((self.status == s).sum()) for s in Status if s != Status.CONVERGED}
        how = ", ".join(f"{number} {s.words}" for s, number in counts.items() if number)
        what = f"{how}; worst residual {float(self.residual[failed].max()):.1e}"
        return f"{self.name}: {count} of {total} samples not verified ({what})"

    def require(self, remedy: str) -> Tensor:
        """The value, or an `InversionError` with the remedy if any sample is not verified."""
        failed = ~self.converged
        if not bool(failed.any()):
            return self.value
        culprit = next((p for p in self.parts if not bool(p.converged[failed].all())), None)
        where = f"{culprit.message}, inside {self.message}" if culprit else self.message
        kinds = self.status[failed].unique().tolist()
        advice = ADVICE.get(kinds[0], remedy) if len(kinds) == 1 else remedy
        if self.value.dtype == torch.float64:
            advice = advice.replace(WIDER, "")
        if self.remark and Status.NO_PREIMAGE in kinds:
            advice = self.remark
        raise InversionError(f"{where}. {advice}", self)

    def rows(self, chosen: Tensor | slice, dtype: torch.dtype | None = None) -> Solution:
        """Some samples, with floating-point numbers of another dtype if that is given."""
        kept = {name: getattr(self, name)[chosen] for name in FIELDS}
        if dtype is not None:
            kept |= {name: kept[name].to(dtype) for name in ("value", "residual", "unit")}
        parts = tuple(part.rows(chosen, dtype) for part in self.parts)
        return Solution(self.name, **kept, parts=parts)


def relative_residual(excess: Tensor, scale: Tensor) -> Tensor:
    """max |f(x) − z| / scale for each sample; NaN counts as infinite. Shape: (batch,)."""
    size = excess.abs().flatten(1).amax(1) / scale
    return size.nan_to_num(nan=float("inf"), posinf=float("inf"))


def own_scale(z: Tensor) -> Tensor:
    """max |z| of each sample, above 0. Shape: (batch,)."""
    return z.abs().flatten(1).amax(1).clamp(min=torch.finfo(z.dtype).tiny)


def checked(
    name: str,
    value: Tensor,
    residual: Tensor,
    unit: Tensor,
    tolerance: float,
    steps: int | Tensor = 0,
    evaluations: int | Tensor = 1,
    failure: Tensor | int | None = None,
) -> Solution:
    """Values with their residuals: converged where these are within the tolerance.

    Other samples have the status ``failure``, by default that they diverged or ran out of steps.
    """
    if failure is None:
        failure = torch.where(residual.isfinite(), int(Status.OUT_OF_STEPS), int(Status.DIVERGED))
    status = torch.where(residual <= tolerance, int(Status.CONVERGED), failure)
    value, none = fill_failures(value, status), torch.zeros_like(status)
    return Solution(name, value, status, residual, unit, none + steps, none + evaluations)


def fill_failures(value: Tensor, status: Tensor) -> Tensor:
    """NaN where a sample has no answer: such a value must not pass for one."""
    lost = (status == Status.DIVERGED) | (status == Status.NOT_FINITE)
    return value.masked_fill(lost.reshape(-1, *(1,) * (value.dim() - 1)), float("nan"))


def merged(first: Solution, rest: Solution, left: Tensor) -> Solution:
    """The first solution with the samples in ``left`` (batch,) taken from the other."""
    taken = {name: getattr(rest, name).to(getattr(first, name).dtype) for name in FIELDS}
    for name in ("steps", "evaluations"):
        taken[name] = taken[name] + getattr(first, name)[left]
    whole = {name: getattr(first, name).index_put((left,), taken[name]) for name in FIELDS}
    parts = tuple(merged(*pair, left) for pair in zip(first.parts, rest.parts, strict=False))
    trace = first.trace
    if trace is None and rest.trace is not None:
        trace = rest.trace.new_full((len(rest.trace), len(left)), float("inf"))
        trace[:, left] = rest.trace
    return replace(first, **whole, parts=parts, trace=trace)


def improved(first: Solution, rest: Solution, left: Tensor) -> Solution:
    """The first solution, with those samples in ``left`` that another one has solved better."""
    better = rest.converged | (rest.residual < first.residual[left])
    return merged(first, rest.rows(better), left.masked_scatter(left, better))
