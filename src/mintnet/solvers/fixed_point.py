"""Algorithm 1 of the paper: a fixed-point iteration for triangular systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mintnet.solvers.base import Evaluate, Solver, System
from mintnet.solvers.captured import captured_steps
from mintnet.solvers.solution import Solution, Status, checked, relative_residual
from mintnet.solvers.verified import TOLERANCES

LOOK_AT = 3  # the step after which `patience` counts


@dataclass(frozen=True)
class FixedPoint(Solver):
    r"""Algorithm 1: x ← x − α diag(J(x))⁻¹ (f(x) − z), stopping for each sample on its own.

    At a root the iteration's Jacobian is triangular with 1 − α along its diagonal, so that it
    converges locally for 0 < α < 2 (Theorem 2) and nowhere near a root otherwise. The paper quotes
    α = 3.5, 1.1 and 1.15; those are *divisors* of the step: its MNIST runs used 1 / 3.5.

    Args:
        step: α.
        max_steps: T.
        tolerance: stop at this residual, as a share of the largest |z| of the sample, and count
            as converged what has reached it, however coarse. ``None``: iterate to the rounding
            floor of the dtype. 0: run all steps. With both, 5e-6 (float64: 1e-12) counts.
        allow_any_step: accept a step outside (0, 2).
        keep_trace: keep the residual after each step.
        damped: safeguard the steps. Where the last step overshot, so that the sign of f(x) − z
            changed and more than half of it is left, divide by the slope of the secant instead, up
            to twice the diagonal. Without it an entry may oscillate for ever.
        patience: after 3 steps, give up the samples that would need more than this many further
            steps, if their residual went on to fall at the same rate. None: give up none.

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
    damped: bool = False
    patience: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.step < 2 and not self.allow_any_step:
            why = "where Algorithm 1 converges locally (Theorem 2)"
            hint = "Values quoted as α = 3.5 in the paper are divisors: use step=1/3.5. Pass "
            hint += "allow_any_step=True to try it all the same."
            raise ValueError(f"step must lie in (0, 2), {why}; got {self.step:g}. {hint}")
        if not isinstance(self.max_steps, int) or self.max_steps < 0:
            raise ValueError(f"max_steps is a whole number from 0 on; got {self.max_steps!r}")
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            what = "a share of the largest |z|, in [0, 1)"
            raise ValueError(f"tolerance is {what}; got {self.tolerance}")

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        state = State.begin(z, scale, system.first(z), system.context)
        finished, trace = list[State](), list[Tensor]()
        steps = None if self.keep_trace else captured_steps(self, system.evaluate, state)
        if steps is not None:
            state = steps.run(system.evaluate, state, self.max_steps + 1, self.tolerance != 0)
        else:
            for _ in range(self.max_steps + 1):
                state = self.advance(state, system.evaluate)
                if self.keep_trace:
                    last = trace[-1] if trace else torch.full_like(scale, float("inf"))
                    trace.append(last.index_copy(0, state.row, state.now))
                if self.tolerance == 0:
                    continue
                done = int(state.done.sum())
                if done == len(state.done):
                    break
                if 4 * done >= len(state.done):  # splitting a batch costs time as well
                    finished.append(state.rows(state.done))
                    state = state.rows(~state.done)
        residuals = torch.stack(trace) if trace else None
        return self._solution(system.name, [*finished, state], residuals)

    def advance(self, s: State, evaluate: Evaluate) -> State:
        """One pass of Algorithm 1's loop: look at the residual, then take line 5."""
        y, slope = evaluate(s.x) if s.given is None else evaluate(s.x, s.given)
        excess = y - s.z
        now = relative_residual(excess, s.scale)
        better = now < s.residual
        done, stuck = s.done, s.stuck
        if self.tolerance != 0:
            rounding = relative_residual(slope * s.x, s.scale) * 8 * torch.finfo(now.dtype).eps
            settled, stalled = self._settled(now, s.residual)
            stuck = torch.where(done, stuck, stalled & (now <= rounding))
            done = done | ~now.isfinite() | settled | stuck
        if self.patience is not None:
            done = done | ((s.taken == LOOK_AT) & (steps_to_go(now) > self.patience))
        step_slope = _secant_where_overshot(s, excess, slope) if self.damped else slope
        return s._replace(
            x=s.x - self.step * excess / step_slope,
            last_x=s.x if self.damped else s.last_x,
            last_excess=excess if self.damped else s.last_excess,
            best=torch.where(better.reshape(-1, *(1,) * (s.x.dim() - 1)), s.x, s.best),
            residual=torch.where(better, now, s.residual),
            now=now,
            first=torch.where(s.first.isnan(), now, s.first),
            latest=torch.where(s.done, s.latest, now),
            steps=torch.where(s.done, s.steps, s.taken),
            taken=s.taken + 1,
            done=done,
            stuck=stuck,
        )

    def _settled(self, now: Tensor, lowest: Tensor) -> tuple[Tensor, Tensor]:
        """Which samples are at their tolerance or the rounding floor, and which have stalled."""
        # Near a root a step leaves |1 − α| of the error; one that leaves much more has stalled.
        stalled = now > max(0.75, (1 + abs(1 - self.step)) / 2) * lowest
        if self.tolerance is not None:
            return now <= self.tolerance, stalled
        floor, enough = 8 * torch.finfo(now.dtype).eps, TOLERANCES[now.dtype]
        return (now <= floor) | ((now <= enough) & stalled), stalled

    def _solution(self, name: str, states: list[State], trace: Tensor | None) -> Solution:
        whole = states[0] if len(states) == 1 else State.joined(states)
        tolerance = self.tolerance or TOLERANCES[whole.z.dtype]
        # A sample that ends farther away than it began diverged. Near the solution, though,
        # rounding alone may move it away.
        diverged = ~(whole.latest <= whole.first.clamp(min=1)) | ~whole.latest.isfinite()
        failure = torch.where(whole.stuck, int(Status.INACCURATE), int(Status.OUT_OF_STEPS))
        failure = failure.masked_fill(diverged, int(Status.DIVERGED))
        parts = whole.best, whole.residual, whole.scale
        found = checked(name, *parts, tolerance, whole.steps, whole.steps + 1, failure)
        residual = found.residual.masked_fill(found.status == Status.DIVERGED, float("inf"))
        return replace(found, residual=residual, trace=trace)


class State(NamedTuple):
    """The samples of an iteration, one row each: all that a step reads and writes.

    ``best`` is the point with the lowest ``residual``; ``first``, ``now`` and ``latest`` are the
    residuals at the start, at the present point and at the last one before the sample was done;
    ``stuck`` ones have stalled where rounding of x itself accounts for the residual.
    """

    row: Tensor
    z: Tensor
    scale: Tensor
    given: Tensor | None
    x: Tensor
    last_x: Tensor
    last_excess: Tensor
    best: Tensor
    residual: Tensor
    now: Tensor
    first: Tensor
    latest: Tensor
    steps: Tensor
    taken: Tensor
    done: Tensor
    stuck: Tensor

    @staticmethod
    def begin(z: Tensor, scale: Tensor, x: Tensor, given: Tensor | None = None) -> State:
        row = torch.arange(len(z), device=z.device)
        unknown, none = torch.full_like(scale, float("inf")), torch.zeros_like(row)
        at = x, x, torch.zeros_like(x), x
        residuals = unknown, unknown, torch.full_like(scale, float("nan")), unknown
        return State(row, z, scale, given, *at, *residuals, none, none, none.bool(), none.bool())

    def rows(self, chosen: Tensor) -> State:
        return self.each(lambda tensor: tensor[chosen])

    def each(self, function: Callable[[Tensor], Tensor]) -> State:
        return State(*(None if part is None else function(part) for part in self))  # type: ignore[arg-type]

    def tensors(self) -> list[Tensor]:
        return [part for part in self if part is not None]

    @staticmethod
    def joined(states: list[State]) -> State:
        order = torch.cat([state.row for state in states]).argsort()
        fields = zip(*states, strict=True)
        return State(*(None if f[0] is None else torch.cat(f)[order] for f in fields))  # type: ignore[arg-type]


@dataclass(frozen=True)
class ResidualIteration(Solver):
    """x ← z − g(x) for f(x) = x + g(x), from x = z: the inverse of an i-ResNet block.

    It is Algorithm 1 without the division by the slope, and converges where g is a contraction,
    which that of a Mint layer need not be. The arguments are as for `FixedPoint`.
    """

    max_steps: int = 100
    tolerance: float | None = None

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        def evaluate(x: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
            y = system.evaluate(x, *given)[0]
            return y, torch.ones_like(y)

        other = replace(system, evaluate=evaluate, start=torch.clone)
        return FixedPoint(1.0, self.max_steps, self.tolerance)._solve(other, z, scale)


def steps_to_go(residual: Tensor) -> Tensor:
    """Steps until the rounding floor, if each goes on to shrink the residual as the first 3 did.

    Residuals are shares of the largest |z| and begin near 1, so that r after 3 steps means a
    factor of r^(1/3) a step. On the trained models this tells 6 steps from 20, which is enough.
    """
    eps = torch.finfo(residual.dtype).eps
    steps = LOOK_AT * (residual / (8 * eps)).log() / -residual.log()
    return torch.where(residual < 1, steps, float("inf"))


def _secant_where_overshot(s: State, excess: Tensor, slope: Tensor) -> Tensor:
    """The slope to divide by: steeper, up to twice, where the last step went too far."""
    crossed = excess.sign() * s.last_excess.sign() < 0
    overshot = crossed & (excess.abs() > 0.5 * s.last_excess.abs())
    secant = (excess - s.last_excess) / (s.x - s.last_x)
    factor = (secant / slope).nan_to_num(nan=1.0).clamp(1.0, 2.0)
    return torch.where(overshot, factor * slope, slope)
