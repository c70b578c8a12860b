"""FFJORD: the flow of a differential equation. Outside F."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.bijections.base import Bijection
from mintnet.calculus.masks import check_positive
from mintnet.flows.couplings import check_shape, layer
from mintnet.solvers import Auto, Solution, Solver, Status, relative_residual
from mintnet.solvers.solution import checked, own_scale

State = tuple[Tensor, ...]
Dynamics = Callable[[Any, State], State]
CORRECTIONS = 30  # of the inverse by what its image misses


class Velocity(nn.Module):
    """v(t, x): three layers with tanh, of x and one more channel (or entry) that holds t."""

    def __init__(self, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.first = layer(shape, shape[0] + 1, hidden)
        self.middle, self.last = layer(shape, hidden, hidden), layer(shape, hidden, shape[0])

    def forward(self, t: Tensor | float, x: Tensor) -> Tensor:
        v = torch.tanh(self.first(torch.cat((x, torch.ones_like(x[:, :1]) * t), 1)))
        return self.last(torch.tanh(self.middle(v)))  # type: ignore[no-any-return]


class FFJORD(Bijection):
    """z = x(1) of ẋ = v(t, x), x(0) = x (Grathwohl et al., 2019).

    log |det| = ∫ tr(∂v/∂x) dt, with the trace *estimated* by εᵀ (∂v/∂x) ε for one random ε. The
    inverse integrates backwards, and is corrected by what its image misses. ``method`` is "dopri5",
    adaptive, with `torchdiffeq` (pip install "mintnet[ffjord]"), where all is as exact as
    ``tolerance``, no more; or "rk4", with ``steps``.

    Examples:
        >>> flow, x = FFJORD((4,), hidden=8, method="rk4"), torch.randn(3, 4)
        >>> bool(torch.allclose(flow.inverse(flow(x)[0]), x, atol=1e-5))
        True
    """

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
        wanted, noise = torch.is_grad_enabled(), torch.randn_like(x)

        def dynamics(t: Any, state: State) -> State:
            with torch.enable_grad():
                at = state[0] if state[0].requires_grad else state[0].detach().requires_grad_()
                v = self.velocity(t, at)
                (image,) = torch.autograd.grad(v, at, noise, create_graph=wanted)
                trace = (image * noise).flatten(1).sum(1)
            return (v, trace) if wanted else (v.detach(), trace.detach())

        z, log_det = self._integrate(dynamics, (x, x.new_zeros(len(x))), 0.0, 1.0)
        return z, log_det

    def value(self, x: Tensor) -> Tensor:
        return self._move(x, 0.0, 1.0)

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        if solver is not None and not isinstance(solver, Auto):
            raise ValueError(f"FFJORD integrates backwards and takes no solver; got {solver!r}")
        target = z.nan_to_num(0.0, 0.0, 0.0)
        scale = own_scale(target)
        x = best = begin = self._move(target, 1.0, 0.0)
        residual, steps = torch.full_like(scale, float("inf")), 0
        for steps in range(CORRECTIONS):  # noqa: B007
            image = self.value(x)
            now = relative_residual(image - target, scale)
            best = torch.where((now < residual).reshape(-1, *(1,) * (x.dim() - 1)), x, best)
            stalled = now > 0.5 * residual
            residual = torch.minimum(residual, now)
            if bool(stalled.all()):
                break
            x = x + begin - self._move(image, 1.0, 0.0)
        finite = z.flatten(1).isfinite().all(1)
        failure = torch.where(finite, int(Status.OUT_OF_STEPS), int(Status.NOT_FINITE))
        residual = torch.where(finite, residual, float("inf"))
        tolerance = self.tolerance_of(z.dtype, None)
        return checked("FFJORD", best, residual, scale, tolerance, steps, 2 * steps + 2, failure)

    def attach(self, x: Tensor, z: Tensor) -> Tensor:
        # One more correction, which moves x by nothing, has the gradients.
        correction = self._move(z, 1.0, 0.0) - self._move(self.value(x), 1.0, 0.0)
        return x + correction - correction.detach()

    def tolerance_of(self, dtype: torch.dtype, solver: Solver | None) -> float:
        promised = 10 * self.tolerance if self.method == "dopri5" else 0.0
        return max(super().tolerance_of(dtype, solver), promised)

    def _move(self, x: Tensor, begin: float, end: float) -> Tensor:
        """The flow without its log-determinant."""
        return self._integrate(lambda t, state: (self.velocity(t, *state),), (x,), begin, end)[0]

    def _integrate(self, dynamics: Dynamics, state: State, begin: float, end: float) -> State:
        if self.method == "rk4" or not len(state[0]):  # whose error could not be measured
            return _runge_kutta(dynamics, state, begin, end, self.steps)
        times, tol = state[0].new_tensor([begin, end]), self.tolerance
        try:
            path = _torchdiffeq().odeint(dynamics, state, times, rtol=tol, atol=tol)
        except AssertionError as error:  # with which it says that no step is short enough
            raise RuntimeError(
                f"the adaptive integrator does not reach a tolerance of {tol:g} ({error}): weights "
                'or x may be too large or not finite; take a larger tolerance, or method="rk4"'
            ) from error
        return tuple(part[-1] for part in path)


def _runge_kutta(f: Dynamics, state: State, begin: float, end: float, steps: int) -> State:
    """The classical method of order four with equal steps."""
    h = (end - begin) / steps

    def ahead(state: State, slope: State, by: float) -> State:
        return tuple(s + by * k for s, k in zip(state, slope, strict=True))

    for step in range(steps):
        t = begin + step * h
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
        ways = 'pip install "mintnet[ffjord]", or choose method="rk4", which needs nothing'
        raise ImportError(f"FFJORD with dopri5 needs torchdiffeq: {ways}") from error
    return torchdiffeq
