"""Algorithm 1 of the paper: a fixed-point iteration for triangular systems."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mintnet.solvers.base import TOLERANCES, Solver, System, fill_failures
from mintnet.solvers.blocks import Evaluate
from mintnet.solvers.captured import Iteration, solve_captured
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
        tolerance: stop at this residual, as a share of the largest |z| of the sample, and count
            as converged what has reached it, however coarse. ``None``: iterate to the rounding
            floor of the dtype. 0: run all steps. With both, 5e-6 (float64: 1e-12) counts.
        allow_any_step: accept a step outside (0, 2).
        keep_trace: record the residual after each step.
        capture: on a GPU, replay the steps of a layer that is solved again as a CUDA graph.
        watch: shorten a step where the last one went too far: where the sign of f(x) − z has
            changed and more than half of it is left, the slope between the two points is taken,
            up to twice the diagonal. Without it, an entry may jump to and fro for ever.

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
    capture: bool = True
    watch: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.step < 2 and not self.allow_any_step:
            raise ValueError(
                "step must lie in (0, 2), where Algorithm 1 converges locally (Theorem 2); got "
                f"{self.step:g}. Values quoted as α = 3.5 in the paper are divisors: use "
                "step=1/3.5. Pass allow_any_step=True to try it all the same."
            )
        if not isinstance(self.max_steps, int) or self.max_steps < 0:
            raise ValueError(f"max_steps is a whole number from 0 on; got {self.max_steps!r}")
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise ValueError(
                f"tolerance is a share of the largest |z|, in [0, 1); got {self.tolerance}"
            )

    def _solve(
        self, system: System, z: Tensor, scale: Tensor, start: Tensor | None = None
    ) -> Solution:
        """As of every solver; ``start`` is where to begin, if it is not where the system says."""
        tolerance = self.tolerance or TOLERANCES[z.dtype]
        if z.is_cuda and self.capture and not self.keep_trace:
            iteration = self._iteration(system.name)
            found = solve_captured(system, z, scale, iteration, self.max_steps, start)
            if found is not None:
                return found
        run = Run(z, scale, system.start(z) if start is None else start, system.given, self.watch)
        if start is not None:  # who begins near the end has not left when it ends farther away
            run.first = torch.full_like(scale, float("inf"))
        trace = [torch.full_like(scale, float("inf"))]
        for step in range(self.max_steps + 1):
            excess, slope = self.look(run, system.evaluate, step)
            if self.keep_trace:
                trace.append(trace[-1].index_copy(0, run.active, run.now))
            if step == self.max_steps or run.leave(certain=self.tolerance != 0):
                break
            kept = slice(None) if run.kept is None else run.kept
            self.move(run, excess[kept], slope[kept])
        return run.solution(
            system.name, tolerance, torch.stack(trace[1:]) if self.keep_trace else None
        )

    def look(self, run: Run, evaluate: Evaluate, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """f(x) − z and diag J(x); the run notes residuals, and which samples are done."""
        y, slope = evaluate(run.x) if run.given is None else evaluate(run.x, run.given)
        excess = y - run.z
        now, previous = relative_residual(excess, run.scale), run.residual
        run.note(step, now)
        if self.tolerance != 0:  # else every step is wanted
            run.gone = run.gone | ~now.isfinite() | self._settled(now, previous)
        return excess, slope

    def move(self, run: Run, excess: Tensor, slope: Tensor) -> None:
        """Algorithm 1, line 5."""
        if self.watch:
            slope = run.braked(excess, slope)
        run.x = run.x - self.step * excess / slope

    def _iteration(self, name: str) -> Iteration[Run]:
        """What is recorded where steps can be."""

        def step(run: Run, evaluate: Evaluate, count: Tensor) -> None:
            self.move(run, *self.look(run, evaluate, count))

        def end(run: Run) -> Solution:
            return run.solution(name, self.tolerance or TOLERANCES[run.z.dtype])

        key = (self.step, self.tolerance, self.watch)
        return Iteration(key, partial(Run, watch=self.watch), step, end)

    def _settled(self, now: Tensor, previous: Tensor) -> Tensor:
        """Which samples need no further step: at their tolerance, or at the rounding floor."""
        if self.tolerance is not None:
            return (now <= self.tolerance) & (self.tolerance > 0)
        floor, enough = 8 * torch.finfo(now.dtype).eps, TOLERANCES[now.dtype]
        # Near a root a step leaves |1 − α| of the error; one that leaves much more has stalled.
        stalled = now > max(0.75, (1 + abs(1 - self.step)) / 2) * previous
        return (now <= floor) | ((now <= enough) & stalled)


class Run:
    """The samples that are still being solved, and what came of those that have left.

    ``best`` is the point with the lowest residual of each sample, ``first`` and ``latest`` are
    its first and last residual. ``given`` is `System.given`. ``watch`` keeps the point and excess
    of the last step too.
    """

    def __init__(
        self,
        z: Tensor,
        scale: Tensor,
        x: Tensor,
        given: Tensor | None = None,
        watch: bool = False,
    ) -> None:
        self.z, self.scale, self.x, self.given = z, scale, x, given
        self.last_x: Tensor | None = x if watch else None
        self.last_excess: Tensor | None = torch.zeros_like(x) if watch else None
        self.active = torch.arange(len(z), device=z.device)
        self.residual = torch.full_like(scale, float("inf"))
        self.best, self.latest = x, self.residual
        self.first = torch.full_like(scale, float("nan"))
        self.now = self.residual
        self.steps = torch.zeros_like(self.active)
        self.gone = torch.zeros_like(self.active, dtype=torch.bool)
        self.kept: Tensor | None = None
        self._outcome: list[tuple[Tensor, ...]] = []

    def note(self, step: int | Tensor, now: Tensor) -> None:
        """Take in the residuals of the present points."""
        self.now = now
        better = now < self.residual
        self.best = torch.where(better.reshape(-1, *(1,) * (self.x.dim() - 1)), self.x, self.best)
        self.residual = torch.where(better, now, self.residual)
        self.latest = torch.where(self.gone, self.latest, now)
        self.steps = torch.where(self.gone, self.steps, step)
        self.first = torch.where(self.first.isnan(), now, self.first)

    def leave(self, certain: bool) -> bool:
        """Let samples that are done leave the batch; True when none is left.

        A few may wait for others: taking a batch apart costs about as much as it saves. On a GPU
        all wait: for each new size of a batch, convolutions are planned anew.
        """
        self.kept = None
        if not certain:  # every step is wanted: no need to look
            return False
        gone = int(self.gone.sum())
        if gone == len(self.gone):
            return True
        if 4 * gone >= len(self.gone) and not self.z.is_cuda:
            self._file(self.gone)
            self.kept = ~self.gone
            for name in (*_FILED, *_PRESENT):
                if (value := getattr(self, name)) is not None:
                    setattr(self, name, value[self.kept])
        return False

    def braked(self, excess: Tensor, slope: Tensor) -> Tensor:
        """The slope, steeper where the last step went too far: that of the secant, up to twice."""
        assert self.last_x is not None and self.last_excess is not None
        other_side = excess.sign() * self.last_excess.sign() < 0
        too_far = other_side & (excess.abs() > 0.5 * self.last_excess.abs())
        secant = (excess - self.last_excess) / (self.x - self.last_x)
        factor = (secant / slope).nan_to_num(nan=1.0).clamp(1.0, 2.0)
        self.last_x, self.last_excess = self.x, excess
        return torch.where(too_far, factor * slope, slope)

    def _file(self, rows: Tensor) -> None:
        parts = (self.active, *(getattr(self, name) for name in _FILED))
        self._outcome.append(tuple(part[rows] for part in parts))

    def solution(self, name: str, tolerance: float, trace: Tensor | None = None) -> Solution:
        """Everything filed, in the order of the batch."""
        best, residual, first, latest, steps = (getattr(self, name) for name in _FILED)
        if self._outcome:
            self._file(torch.ones_like(self.gone))
            filed = [torch.cat(parts) for parts in zip(*self._outcome, strict=True)]
            order = filed[0].argsort()
            best, residual, first, latest, steps = (part[order] for part in filed[1:])
        # A sample that ends farther away than it began has not run out of steps: it left.
        left = ~latest.isfinite() | (latest > first)
        status = torch.where(left, int(Status.DIVERGED), int(Status.OUT_OF_STEPS))
        status = torch.where(residual <= tolerance, int(Status.CONVERGED), status)
        return Solution(
            name=name,
            value=fill_failures(best, status),
            status=status,
            residual=torch.where(status == Status.DIVERGED, float("inf"), residual),
            steps=steps,
            evaluations=steps + 1,
            trace=trace,
        )


_PRESENT = ("active", "z", "scale", "x", "given", "gone", "last_x", "last_excess")
_FILED = ("best", "residual", "first", "latest", "steps")
