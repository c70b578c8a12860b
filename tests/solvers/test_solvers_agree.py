"""Every solver on every triangular bijection, its gradients, and its independence of the batch."""

import pytest
import torch
from torch.autograd import forward_ad

import mintnet as mn
from mintnet import calculus as ca
from mintnet.bijections import TriangularBijection
from mintnet.solvers import Solver
from registry import TRIANGULAR, Case, away_from_zero, strictly_earlier

SOLVERS: dict[str, Solver] = {
    "fixed-point": mn.FixedPoint(),
    "slow fixed-point": mn.FixedPoint(step=0.5, max_steps=400),
    "wavefront": mn.Wavefront(),
    "bisection": mn.Bisection(),
    "auto": mn.Auto(),
}
by_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
SMALLEST = [c for c in TRIANGULAR if torch.Size(c.input_shape).numel() <= 24]


@pytest.mark.parametrize("case", SMALLEST, ids=str)
def test_all_solvers_agree(case: Case) -> None:
    bijection, x = case.build(), case.sample_input(2)
    z = bijection(x)[0].detach()
    for name, solver in SOLVERS.items():
        if name in ("bisection", "slow fixed-point") and z[0].numel() > 9:
            continue  # some sixty evaluations for each coordinate
        solution = bijection.solve(z, solver)
        found, may_diverge = solution.converged, "levels" in case.name and "fixed-point" in name
        assert may_diverge or bool(found.all()), f"{name}: {solution.message}"
        torch.testing.assert_close(solution.value[found], x[found], rtol=1e-9, atol=1e-9, msg=name)


def _small() -> TriangularBijection:
    layer = away_from_zero(mn.MintLayer(2, 2, (1, 2), activation="tanh").double(), 4, 2.0)
    assert isinstance(layer, TriangularBijection)
    return layer


def _all_earlier(weight: float) -> ca.MaskedLinear:
    s = strictly_earlier(3).double()
    with torch.no_grad():
        s.weight.fill_(weight)
        s.bias.zero_()
    return s


def test_a_gradient_that_cannot_be_verified_raises() -> None:
    """J is triangular with 1e200 below its diagonal: J⁻ᵀ g has entries that overflow."""
    bijection = mn.Composed(ca.Identity() + _all_earlier(1e200), (3,)).eval()
    x = bijection.inverse(torch.zeros(1, 3, dtype=torch.float64, requires_grad=True))
    assert bool((x == 0).all())
    with pytest.raises(mn.InversionError, match="gradient through"):
        x.sum().backward()


def test_gradients_of_weights_alone_of_nothing_and_second_ones() -> None:
    layer, z = _small(), torch.randn(2, 2, 1, 2, dtype=torch.float64)
    layer.inverse(z).sum().backward()
    for name, weight in layer.named_parameters():
        assert weight.grad is not None and bool((weight.grad != 0).any()), name
    with torch.no_grad():
        assert not layer.inverse(z).requires_grad
    z.requires_grad_()
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(layer.inverse(z).sum(), z, create_graph=True)


@pytest.mark.parametrize("of", ["z", "weights"])
def test_forward_mode_is_refused(of: str) -> None:
    """Where weights are frozen, tangents would go through the steps of a solver, and be wrong."""
    layer = mn.MintLayer(1, 2, (2, 2)).double().requires_grad_(False)
    z = torch.randn(1, 1, 2, 2, dtype=torch.float64)
    for method in (layer.inverse, layer.solve):
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="backward"):
            dual = z if of == "z" else layer.raw_t
            dual = forward_ad.make_dual(dual.detach(), torch.ones_like(dual))
            if of == "weights":  # as torch.func.functional_call puts them in
                layer._parameters["raw_t"] = dual
            method(dual if of == "z" else z, mn.Bisection())


@by_solver
def test_samples_that_overflow_touch_no_other(solver: Solver) -> None:
    bijection = mn.Composed(ca.Identity() + ca.Exp() @ _all_earlier(1.0), (3,)).eval()
    z = torch.tensor([[0.5, 1.0, -2.0], [800.0, 1.0, 1.0], [0.1, 0.2, 0.3]], dtype=torch.float64)
    alone = bijection.solve(z[::2], solver)
    mixed = bijection.solve(z, solver)
    assert mixed.converged.tolist() == [True, False, True]
    assert bool(mixed.value[1].isnan().all()) or mixed.status[1] == mn.Status.OUT_OF_STEPS
    torch.testing.assert_close(mixed.value[::2], alone.value, rtol=1e-10, atol=1e-10)
    with pytest.raises(mn.InversionError):
        bijection.inverse(z, solver)


@by_solver
@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
def test_targets_that_are_not_finite(solver: Solver, bad: float) -> None:
    layer = _small()
    z = torch.randn(3, 2, 1, 2, dtype=torch.float64)
    clean = layer.solve(z, solver)
    broken = z.clone()
    broken[1, 0, 0, 0] = bad
    solution = layer.solve(broken, solver)
    good = mn.Status.CONVERGED
    assert solution.status.tolist() == [good, mn.Status.NOT_FINITE, good]
    assert bool(solution.value[1].isnan().all()) and solution.residual[1] == float("inf")
    torch.testing.assert_close(solution.value[::2], clean.value[::2], rtol=1e-12, atol=1e-12)
    assert "had NaN or infinite targets" in solution.message
    assert layer.name in clean.message and "all 3 samples verified" in clean.message
    if isinstance(solver, mn.FixedPoint):
        assert torch.equal(clean.evaluations, clean.steps + 1)
    assert layer.solve(z * bad, solver).status.tolist() == [mn.Status.NOT_FINITE] * 3


@by_solver
def test_half_precision_is_refused(solver: Solver, raises_with) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        layer = mn.MintLayer(1, 2, (3, 3)).to(dtype)
        with raises_with(ValueError, "float32 or float64", str(dtype), "x.float()"):
            layer.solve(torch.zeros(1, 1, 3, 3, dtype=dtype), solver)


def test_auto_survives_functions_without_levels() -> None:
    """Samples of shape (3, 4) have no level schedule; Algorithm 1 needs many steps for them."""
    bijection = mn.Composed(ca.Identity() + 0.01 * ca.Exp(), (3, 4)).double()
    z = bijection(torch.linspace(-1, 3, 24, dtype=torch.float64).reshape(2, 3, 4))[0] + 25.0
    for _ in range(4):
        assert bool(bijection.solve(z, mn.Auto()).converged.all())
