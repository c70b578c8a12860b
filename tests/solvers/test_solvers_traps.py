"""Questions with a tempting wrong answer, and what goes on around a solve."""

import threading

import pytest
import torch
from torch import nn

from mintnet import Auto, Bisection, Composed, FixedPoint, MintLayer, Wavefront
from mintnet import calculus as ca
from mintnet.precision import true_float32
from mintnet.solvers import Solver
from mintnet.solvers.wavefront import solve_monotone
from registry import normal_mint

SOLVERS = [Auto(), FixedPoint(), Wavefront(), Bisection()]
by_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)


@by_solver
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_targets_are_right_or_refused(solver, dtype) -> None:
    solution = Composed(ca.Exp(), (1,)).solve(torch.tensor([[1e-30]], dtype=dtype), solver)
    if bool(solution.converged.all()):
        assert float(solution.value) == pytest.approx(-69.0776, rel=1e-4)
    steep = Composed(1e4 * ca.Softplus(), (1,))
    solution = steep.solve(torch.tensor([[0.01]], dtype=dtype), solver)
    assert bool(solution.converged.all())
    assert float(solution.value) == pytest.approx(-13.8155, rel=1e-4)


def test_training_mode_does_not_excuse_a_lost_proof() -> None:
    factor = nn.Parameter(torch.tensor(1.0))
    layer = Composed(ca.Scaled(ca.Identity(), factor) + 2.0 * ca.Tanh(), (1,)).train()
    with torch.no_grad():
        factor.fill_(-0.5)
    with pytest.raises(ca.NotProvedError):
        layer.inverse(torch.zeros(1, 1))


def test_weights_outside_the_mask_are_refused() -> None:
    weight = torch.eye(3) + 0.1
    with pytest.raises(ValueError, match="not triangular"):
        Composed(lambda x: x.through(ca.Dense(weight, None, 3, ca.LOWER)), (3,))
    with pytest.raises(ValueError, match="square; got one of 3×5"):
        wide = ca.Convolution(torch.ones(1, 1, 3, 5), None, 1, ca.LOWER)
        Composed(lambda x: x.through(wide), (1, 4, 4))


def test_an_infinite_slope_is_not_the_end() -> None:
    layer = Composed(lambda x: x + ca.Exp()(100.0 * x), (1,)).eval()
    z = torch.tensor([[1e20]])
    for solver in (Wavefront(), Auto(), Bisection()):
        assert bool(layer.solve(z, solver).converged.all()), type(solver).__name__
    convex = Composed(ca.Identity() + ca.Exp(), (1,)).double()
    z = torch.tensor([[5.0], [-3.0], [40.0]], dtype=torch.float64)
    assert bool(convex.solve(z).converged.all())


@torch.no_grad()
def test_the_wavefront_comes_down_from_exponentials() -> None:
    """From far out, Newton's step on eˣ is 1; brackets from a slope of 1e-3 are 1e150 wide."""
    torch.manual_seed(0)
    conv = ca.MaskedConv2d(2)
    conv.weight.normal_(std=0.3)
    conv.weight[:, :, 1, 1] = conv.weight[:, :, 1, 1].abs() + 0.1
    layer = Composed(1e-3 * ca.Identity() + ca.Exp() @ conv, (2, 3, 4)).double()
    z = 1e4 * torch.rand(2, 2, 3, 4, dtype=torch.float64)
    solution = layer.solve(z, Wavefront())
    assert bool(solution.converged.all()), solution.message
    exact = layer.solve(z, Bisection()).value
    assert (solution.value - exact).abs().max() < 1e-6 * exact.abs().max()


def test_scalar_equations_that_begin_at_infinity() -> None:
    target, start = torch.ones(1, 1), torch.full((1, 1), 1000.0)
    rest = torch.zeros(1, 1), torch.ones(1, 1)
    x, _ = solve_monotone(lambda x, _: (x.exp(), x.exp()), target, start, *rest)
    assert float(x.abs()) < 1e-6


@pytest.mark.parametrize("scale", [1.0, 3.0, 30.0])
@pytest.mark.parametrize("activation", ["elu", "softplus", "leaky_relu"])
def test_ill_conditioned_layers_are_verified_or_refused(scale: float, activation: str) -> None:
    """Slopes over many decades; what is verified agrees with bisection in float64."""
    for seed in range(2):
        torch.manual_seed(seed)
        layer = MintLayer(2, 2, (3, 3), upper=bool(seed % 2), activation=activation)
        with torch.no_grad():
            for weight in (layer.weight1, layer.weight2, layer.weight3):
                weight.normal_(std=scale)
            layer.raw_t.uniform_(-12, 6)
        z = 3 * torch.randn(4, 2, 3, 3)
        for solver in (Auto(), Wavefront()):
            solution = layer.solve(z, solver)
            with torch.no_grad():
                gap = (layer.evaluate(solution.value)[0] - z).abs().flatten(1).amax(1)
            verified = solution.converged
            assert bool((gap <= 1e-5 * z.abs().flatten(1).amax(1))[verified].all())
            assert bool((solution.residual[~verified] > 5e-6).all()), "refused without a reason"
        exact = layer.double().solve(z.double(), Bisection())
        ours = layer.solve(z.double(), Auto())
        both = exact.converged & ours.converged
        assert int(both.sum()) >= int(exact.converged.sum()), "auto gives up before bisection"
        torch.testing.assert_close(ours.value[both], exact.value[both], rtol=1e-3, atol=1e-6)


@torch.no_grad()
@by_solver
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
    function = Composed(lambda x: factor * x + 5.0 * ca.Tanh()(x), (2, 3, 4))
    x = torch.randn(2, 2, 3, 4)
    found = function.solve(function(x)[0], Wavefront())
    assert bool(found.converged.all()) and (found.value - x).abs().max() < 1e-4
