"""What goes on around a solve does not change what its residual check says."""

from __future__ import annotations

import threading

import pytest
import torch

from mintnet import Auto, Bisection, Composed, FixedPoint, MintLayer, Wavefront
from mintnet.calculus import Softplus, Tanh
from mintnet.precision import true_float32
from mintnet.solvers import Solver

SOLVERS = [Auto(), FixedPoint(), Wavefront(), Bisection()]


def _layer() -> MintLayer:
    torch.manual_seed(0)
    layer = MintLayer(2, 3, (5, 5))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer


@torch.no_grad()
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_autocast_does_not_reach_into_a_solve(solver: Solver) -> None:
    layer = _layer()
    z = layer(torch.randn(3, 2, 5, 5))[0]
    with torch.autocast("cpu", torch.bfloat16):
        found = layer.solve(z, solver)
    assert bool(found.converged.all()) and found.value.dtype == torch.float32
    left = (layer(found.value)[0] - z).abs().flatten(1).amax(1)
    assert bool((left <= 5e-6 * z.abs().flatten(1).amax(1)).all())


def test_true_float32_is_left_by_the_last_thread() -> None:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    inside, go_on, seen = threading.Event(), threading.Event(), []

    def work() -> None:
        with true_float32():
            inside.set()
            go_on.wait(10)
            seen.append(torch.backends.cudnn.allow_tf32)

    try:
        thread = threading.Thread(target=work)
        with true_float32():
            thread.start()
            inside.wait(10)
        assert not torch.backends.cudnn.allow_tf32  # the other one is still inside
        go_on.set()
        thread.join()
        assert seen == [False]
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = before


def test_gradients_refuse_weights_that_have_changed() -> None:
    layer = _layer()
    z = layer(torch.randn(2, 2, 5, 5))[0].detach().requires_grad_()
    total = layer.inverse(z).sum()
    with torch.no_grad():
        layer.weight1.mul_(1.5)
    with pytest.raises(RuntimeError, match="modified in place"):
        torch.autograd.grad(total, z)


@torch.no_grad()
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_small_targets_of_large_functions_are_solved(solver: Solver) -> None:
    steep = Composed(1e4 * Softplus(), (1,))
    found = steep.solve(torch.tensor([[0.01]]), solver)
    assert bool(found.converged.all())
    assert abs(float(found.value) + 13.8155) < 1e-3


@torch.no_grad()
@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 3, 4), (2, 1, 1)])
def test_constants_broadcast_in_the_wavefront(shape: tuple[int, ...]) -> None:
    factor = 0.3 + 0.1 * torch.rand(shape)
    function = Composed(lambda x: factor * x + 5.0 * Tanh()(x), (2, 3, 4))
    x = torch.randn(2, 2, 3, 4)
    found = function.solve(function(x)[0], Wavefront())
    assert bool(found.converged.all()) and (found.value - x).abs().max() < 1e-4


@pytest.mark.parametrize("tolerance", [-1.0, 1.0, float("inf"), float("nan")])
def test_tolerances_that_mean_nothing_are_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="share of the largest"):
        FixedPoint(tolerance=tolerance)
