"""Algorithm 1 of the paper: a fixed-point iteration for triangular systems."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mintnet.solvers.base import TOLERANCES, Solver, System, fill_failures
from mintnet.solvers.solution import Solution, Status, relative_residual


@dataclass(frozen=True)
class FixedPoint(Solver):
    r"""Algorithm 1: x ← x − α diag(J(x))⁻¹ (f(x) − z), stopping for each sample on its own.

    At a root the iteration's Jacobian is triangular with 1 − α along its diagonal, so that it
    converges locally for 0 < α < 2 (Theorem 2) and nowhere near a root otherwise. The paper
    quotes α = 3.5, 1.1 and 1.15; those are *divisors* of the step: its MNIST runs used
    1 / 3.5 ≈ 0.286.

    Args:
        step: α.
        max_steps: T.
        tolerance: stop at this residual, as a share of the largest |z| of the sample. ``None``:
            iterate to the rounding floor of the dtype. 0: run all steps.
        allow_any_step: accept a step outside (0, 2).
        keep_trace: record the residual after each step.

    Examples:
        >>> FixedPoint(step=3.5)
        Traceback (most recent call last):
        ValueError: step must lie in (0, 2), where Algorithm 1 converges locally (Theorem 2); got 3.5. Values quoted as α = 3.5 in the paper are divisors: use step=1/3.5. Pass allow_any_step=True to try it all the same.
    """  # noqa: E501

    step: float = 1.0
    max_steps: int = 120
    tolerance: float | None = None
    allow_any_step: bool = False
    keep_trace: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.step < 2 and not self.allow_any_step:
            raise ValueError(
                "step must lie in (0, 2), where Algorithm 1 converges locally (Theorem 2); got "
                f"{self.step:g}. Values quoted as α = 3.5 in the paper are divisors: use "
                "step=1/3.5. Pass allow_any_step=True to try it all the same."
            )
        if self.max_steps < 0:
            raise ValueError(f"max_steps must be at least 0; got {self.max_steps}")
        if self.tolerance is not None and self.tolerance < 0:
            raise ValueError(f"tolerance must be at least 0; got {self.tolerance}")

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        x = system.start(z)
        best = x.clone()
        residual = torch.full_like(scale, float("inf"))  # the lowest seen, at `best`
        first, latest = residual.clone(), residual.clone()
        steps = torch.zeros(len(z), dtype=torch.long, device=z.device)
        trace: list[Tensor] = []
        active = torch.arange(len(z), device=z.device)  # x holds these samples alone
        for step in range(self.max_steps + 1):
            y, slope = system.evaluate(x)
            now, previous = relative_residual(y, z[active], scale[active]), residual[active]
            better = now < previous
            residual[active] = torch.where(better, now, previous)
            best[active] = torch.where(_like(better, x), x, best[active])
            latest[active], steps[active] = now, step
            if step == 0:
                first[active] = now
            if self.keep_trace:
                trace.append(latest.clone())
            going = now.isfinite() & ~self._settled(now, previous, z.dtype)
            if step == self.max_steps or not bool(going.any()):
                break
            x = x - self.step * (y - z[active]) / slope  # Algorithm 1, line 5
            if not bool(going.all()):
                active, x = active[going], x[going]
        within = residual <= (self.tolerance or TOLERANCES[z.dtype])
        # A sample that ends farther away than it began has not run out of steps: it left.
        left = ~latest.isfinite() | (latest > first)
        status = torch.where(left, int(Status.DIVERGED), int(Status.OUT_OF_STEPS))
        status = torch.where(within, int(Status.CONVERGED), status)
        return Solution(
            name=system.name,
            value=fill_failures(best, status),
            status=status,
            residual=torch.where(status == Status.DIVERGED, float("inf"), residual),
            steps=steps,
            evaluations=steps + 1,
            trace=torch.stack(trace) if trace else None,
        )

    def _settled(self, now: Tensor, previous: Tensor, dtype: torch.dtype) -> Tensor:
        """Which samples need no further step: at their tolerance, or at the rounding floor."""
        if self.tolerance is not None:
            return (now <= self.tolerance) & (self.tolerance > 0)
        floor = 4 * torch.finfo(dtype).eps
        return (now <= floor) | ((now <= TOLERANCES[dtype]) & (now > previous / 2))


def _like(flags: Tensor, x: Tensor) -> Tensor:
    return flags.reshape(-1, *(1,) * (x.dim() - 1))
