"""FFJORD: the flow of a differential equation. Outside F."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.bijections.base import Bijection
from mintnet.calculus.masks import check_positive
from mintnet.flows.networks import check_shape
from mintnet.solvers import REMEDY, TOLERANCES, Solution, Solver, Status, relative_residual
from mintnet.solvers.base import fill_failures, reference_scale

State = tuple[Tensor, Tensor]
Dynamics = Callable[[Tensor, State], State]

CORRECTIONS = 30
"""Times that the inverse is corrected by what its image misses."""


class MissingExtraError(ImportError, ValueError):
    """Something needs a package that is not installed."""


class Velocity(nn.Module):
    """v(t, x): three layers with tanh, of x and one more channel (or entry) that holds t."""

    def __init__(self, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.first: nn.Module
        if len(shape) == 1:
            self.first = nn.Linear(shape[0] + 1, hidden)
            self.middle, self.last = nn.Linear(hidden, hidden), nn.Linear(hidden, shape[0])
        else:
            self.first = nn.Conv2d(shape[0] + 1, hidden, 3, padding=1)
            self.middle = nn.Conv2d(hidden, hidden, 3, padding=1)  # type: ignore[assignment]
            self.last = nn.Conv2d(hidden, shape[0], 3, padding=1)  # type: ignore[assignment]

    def forward(self, t: Tensor | float, x: Tensor) -> Tensor:
        clock = torch.ones_like(x[:, :1]) * t
        v = torch.tanh(self.first(torch.cat((x, clock), 1)))
        found: Tensor = self.last(torch.tanh(self.middle(v)))
        return found


class FFJORD(Bijection):
    r"""z = x(1) of ẋ = v(t, x), x(0) = x (Grathwohl et al., 2019).

    log |det| = ∫ tr(∂v/∂x) dt, with the trace *estimated* by εᵀ (∂v/∂x) ε for one random ε. The
    inverse integrates backwards, and corrects what its image misses until nothing is gained.

    Args:
        shape: of one sample, (C, H, W) or (D,).
        hidden: the width of v.
        method: "dopri5", adaptive, with `torchdiffeq` (pip install "mintnet[ffjord]"); or "rk4",
            the classical method with a fixed number of steps, which needs nothing.
        steps: of rk4.
        tolerance: relative and absolute, of dopri5. Values, inverses and log-determinants are as
            exact as it says, no more.

    Examples:
        >>> flow = FFJORD((4,), hidden=8, method="rk4")
        >>> x = torch.randn(3, 4)
        >>> bool(torch.allclose(flow.inverse(flow(x)[0]), x, atol=1e-5))
        True
    """

    event_shape: tuple[int, ...]

    def __init__(
        self,
        shape: tuple[int, ...],
        hidden: int = 64,
        method: str = "dopri5",
        steps: int = 8,
        tolerance: float = 1e-5,
    ) -> None:
        super().__init__()
        check_shape(shape)
        check_positive(hidden=hidden, steps=steps)
        if method not in ("dopri5", "rk4"):
            raise ValueError(f"unknown method {method!r}; choose dopri5 or rk4")
        if method == "dopri5":
            _torchdiffeq()
        self.event_shape = tuple(shape)
        self.method, self.steps, self.tolerance = method, steps, tolerance
        self.velocity = Velocity(self.event_shape, hidden)

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wanted = torch.is_grad_enabled()
        noise = torch.randn_like(x)

        def dynamics(t: Tensor, state: State) -> State:
            with torch.enable_grad():
                at = state[0] if state[0].requires_grad else state[0].detach().requires_grad_()
                v = self.velocity(t, at)
                (image,) = torch.autograd.grad(
                    v, at, noise, create_graph=wanted, retain_graph=wanted
                )
                trace = (image * noise).flatten(1).sum(1)
            return (v, trace) if wanted else (v.detach(), trace.detach())

        return self._integrate(dynamics, (x, x.new_zeros(len(x))), 0.0, 1.0)

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        finite = z.flatten(1).isfinite().all(1)
        z = torch.where(finite.reshape(-1, *(1,) * (z.dim() - 1)), z, 0.0)
        scale = reference_scale(lambda x: self._move(x, 0.0, 1.0), z, z)
        x = best = self._move(z, 1.0, 0.0)
        residual = torch.full_like(scale, float("inf"))
        steps = 0
        for steps in range(CORRECTIONS):  # noqa: B007
            image = self._move(x, 0.0, 1.0)
            now = relative_residual(image - z, scale)
            better = now < residual
            stalled = now > 0.5 * residual
            best = torch.where(better.reshape(-1, *(1,) * (x.dim() - 1)), x, best)
            residual = torch.minimum(residual, now)
            if bool(stalled.all()):
                break
            x = x + self._move(z, 1.0, 0.0) - self._move(image, 1.0, 0.0)
        close = residual <= self._allowed(z.dtype)
        status = torch.where(close, int(Status.CONVERGED), int(Status.OUT_OF_STEPS))
        status = torch.where(finite, status, int(Status.NOT_FINITE))
        count = torch.full_like(status, steps)
        residual = torch.where(finite, residual, float("inf"))
        value = fill_failures(best, status)
        return Solution("FFJORD", value, status, residual, count, 3 * count + 2)

    def differentiable_inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        """The certified x; gradients are those of the correction that `find` makes last.

        It moves x by nothing, since x is the root. Its derivatives are B and −B ∂f/∂θ with B the
        Jacobian of the integral backwards, which is J⁻¹ up to the error of the integrator.
        """
        x = self.find(z.detach(), solver).require(REMEDY)
        image = self._move(x, 0.0, 1.0)
        correction = self._move(z, 1.0, 0.0) - self._move(image, 1.0, 0.0)
        return x + correction - correction.detach()

    def _allowed(self, dtype: torch.dtype) -> float:
        """The residual of a certified inverse: rounding, or what dopri5 promises."""
        least = TOLERANCES.get(dtype, 0.0)
        return max(least, 10 * self.tolerance) if self.method == "dopri5" else least

    def _move(self, x: Tensor, begin: float, end: float) -> Tensor:
        """The flow without its log-determinant."""

        def dynamics(t: Tensor, state: State) -> State:
            return self.velocity(t, state[0]), torch.zeros_like(state[1])

        return self._integrate(dynamics, (x, x.new_zeros(len(x))), begin, end)[0]

    def _integrate(self, dynamics: Dynamics, state: State, begin: float, end: float) -> State:
        if self.method == "rk4" or not len(state[0]):  # whose error could not be measured
            return _runge_kutta(dynamics, state, begin, end, self.steps)
        times = state[0].new_tensor([begin, end])
        options = {"rtol": self.tolerance, "atol": self.tolerance, "method": "dopri5"}
        try:
            x, log_det = _torchdiffeq().odeint(dynamics, state, times, **options)
        except AssertionError as error:  # with which it says that no step is short enough
            raise RuntimeError(
                f"the adaptive integrator of FFJORD does not reach a tolerance of "
                f"{self.tolerance:g} ({error}); the weights or x may be too large or not finite, "
                'else take a larger tolerance, or method="rk4"'
            ) from error
        return x[-1], log_det[-1]

    def extra_repr(self) -> str:
        how = f"{self.steps} steps" if self.method == "rk4" else f"tolerance {self.tolerance:g}"
        return f"{self.event_shape}, {self.method} with {how}"


def _runge_kutta(f: Dynamics, state: State, begin: float, end: float, steps: int) -> State:
    """The classical method of order four with equal steps."""
    h = (end - begin) / steps

    def ahead(state: State, slope: State, by: float) -> State:
        return state[0] + by * slope[0], state[1] + by * slope[1]

    for step in range(steps):
        t: Any = begin + step * h
        k1 = f(t, state)
        k2 = f(t + h / 2, ahead(state, k1, h / 2))
        k3 = f(t + h / 2, ahead(state, k2, h / 2))
        k4 = f(t + h, ahead(state, k3, h))
        for slope, weight in ((k1, 1), (k2, 2), (k3, 2), (k4, 1)):
            state = ahead(state, slope, weight * h / 6)
    return state


def _torchdiffeq() -> Any:
    try:
        import torchdiffeq
    except ImportError as error:
        raise MissingExtraError(
            "the adaptive integrator of FFJORD needs torchdiffeq, which is not installed: pip "
            'install "mintnet[ffjord]", or choose method="rk4", which needs nothing'
        ) from error
    return torchdiffeq
