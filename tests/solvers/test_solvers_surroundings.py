"""What goes on around a solve does not change what its residual check says."""

from __future__ import annotations

import threading

import pytest
import torch

from mintnet import Auto, Bisection, Composed, FixedPoint, Wavefront
from mintnet.calculus import Tanh
from mintnet.precision import true_float32
from mintnet.solvers import Solver
from registry import normal_mint

SOLVERS = [Auto(), FixedPoint(), Wavefront(), Bisection()]


@torch.no_grad()
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_autocast_does_not_reach_into_a_solve(solver: Solver) -> None:
    layer = normal_mint(2, 3, (5, 5))
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
    layer = normal_mint(2, 3, (5, 5))
    z = layer(torch.randn(2, 2, 5, 5))[0].detach().requires_grad_()
    total = layer.inverse(z).sum()
    with torch.no_grad():
        layer.weight1.mul_(1.5)
    with pytest.raises(RuntimeError, match="modified in place"):
        torch.autograd.grad(total, z)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 3, 4), (2, 1, 1)])
def test_constants_broadcast_in_the_wavefront(shape: tuple[int, ...]) -> None:
    factor = 0.3 + 0.1 * torch.rand(shape)
    function = Composed(lambda x: factor * x + 5.0 * Tanh()(x), (2, 3, 4))
    x = torch.randn(2, 2, 3, 4)
    found = function.solve(function(x)[0], Wavefront())
    assert bool(found.converged.all()) and (found.value - x).abs().max() < 1e-4
