"""Algorithm 1: its steps, its tolerances, and how it says that it failed."""

from dataclasses import replace

import pytest
import torch

from mintnet import Composed, FixedPoint, InversionError, MintLayer, Status
from mintnet.calculus import Identity, MaskedLinear, Tanh
from mintnet.solvers import REMEDY, Solution
from registry import HARD, away_from_zero, trained_flow, trained_layer, trained_places


def layer_and_target(dtype: torch.dtype = torch.float64) -> tuple[MintLayer, torch.Tensor]:
    layer = away_from_zero(MintLayer(1, 3, (4, 4)), 2, 2.0).to(dtype)
    return layer, layer(torch.randn(3, 1, 4, 4, dtype=dtype))[0].detach()


@pytest.mark.parametrize("step", [0.0, 2.0, -0.5, 3.5, float("nan"), float("inf")])
def test_steps_outside_0_to_2_are_refused(step: float, raises_with) -> None:
    words = "(0, 2)", "Theorem 2", f"{step:g}", "1/3.5", "allow_any_step=True"
    with raises_with(ValueError, *words):
        FixedPoint(step=step)
    assert FixedPoint(step=step, allow_any_step=True).allow_any_step
    assert FixedPoint(step=1e-3).step == 1e-3 and FixedPoint(step=1.99).step == 1.99


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *(("max_steps", value, repr(value)) for value in (-1, "many")),
        *(("tolerance", value, "share of the largest") for value in (-0.1, -1.0, 1.0)),
        *(("tolerance", float(value), "share of the largest") for value in ("inf", "nan")),
    ],
)
def test_other_settings_that_are_refused(name, value, words, raises_with) -> None:
    with raises_with(ValueError, name, value, words):
        FixedPoint(**{name: value})


def test_one_step_is_line_5_of_the_algorithm() -> None:
    layer, z = layer_and_target()
    with torch.no_grad():
        x = layer.start(z)
        torch.testing.assert_close(x, z / layer.t)
        y, slope = layer.evaluate(x)
        expected = x - 0.7 * (y - z) / slope
        better, worse = ((v - z).abs().flatten(1).amax(1) for v in (layer(expected)[0], y))
    solution = layer.solve(z, FixedPoint(step=0.7, max_steps=1, tolerance=0))
    assert bool((better < worse).all()) and solution.steps.tolist() == [1, 1, 1]
    torch.testing.assert_close(solution.value, expected)


def test_a_triangular_system_ends_after_as_many_steps_as_coordinates() -> None:
    """Affine functions: the iteration matrix at α = 1 is nilpotent."""
    matrix = away_from_zero(MaskedLinear(6), 1, 4.0).double()
    bijection = Composed(matrix, (6,), insist=True)
    z = torch.randn(4, 6, dtype=torch.float64)
    exact = bijection.solve(z, FixedPoint(max_steps=7))
    assert bool(exact.converged.all()) and int(exact.steps.max()) <= 7
    triangle = (matrix.weight * matrix.mask).detach()
    expected = torch.linalg.solve_triangular(triangle, (z - matrix.bias.detach()).T, upper=False).T
    torch.testing.assert_close(exact.value, expected)


@pytest.mark.parametrize("step", [0.3, 1.0, 1.5])
def test_the_error_shrinks_by_1_minus_step(step: float) -> None:
    """Theorem 2, on a function that is linear: the residual goes down as |1 − α|ⁿ exactly."""
    system = Composed(3.0 * Identity(), (1,)).double().system()
    solution = FixedPoint(step=step, max_steps=6, tolerance=0, keep_trace=True).solve(
        replace(system, start=lambda z: torch.zeros_like(z)), torch.ones(1, 1, dtype=torch.float64)
    )
    expected = torch.tensor([abs(1 - step) ** n for n in range(7)], dtype=torch.float64)
    torch.testing.assert_close(solution.trace[:, 0], expected, rtol=1e-9, atol=1e-12)


def test_tolerances() -> None:
    layer, z = layer_and_target()
    floor = layer.solve(z, FixedPoint())
    loose = layer.solve(z, FixedPoint(tolerance=1e-2))
    whole = layer.solve(z, FixedPoint(tolerance=0, max_steps=50))
    assert bool((floor.residual <= 1e-12).all()) and bool(floor.converged.all())
    assert bool((loose.residual <= 1e-2).all()) and bool(loose.converged.all())
    assert bool((loose.steps < floor.steps).all())
    assert whole.steps.tolist() == [50] * 3 and bool(whole.converged.all())
    tight = layer.solve(z, FixedPoint(tolerance=1e-300, max_steps=30))
    assert bool((tight.status == Status.INACCURATE).all()) and int(tight.steps.max()) < 30
    assert FixedPoint().tolerance is None


def test_running_out_of_steps() -> None:
    hard = trained_layer(HARD[1], (10, 10))
    x = 60 * torch.rand(3, 1, 10, 10, dtype=torch.float64) - 30
    for (layer, z), solver in (
        (layer_and_target(), FixedPoint(step=0.1, max_steps=3)),
        ((hard, hard(x)[0].detach()), FixedPoint(max_steps=8)),
    ):
        solution = layer.solve(z, solver)
        assert solution.status.tolist() == [Status.OUT_OF_STEPS] * 3
        assert bool(solution.value.isfinite().all()), "the best point seen"
        image = layer.evaluate(solution.value)[0].detach()
        residual = (image - z).abs().flatten(1).amax(1) / z.abs().flatten(1).amax(1)
        torch.testing.assert_close(solution.residual, residual)
        with pytest.raises(InversionError, match="3 ran out of steps"):
            layer.inverse(z, solver)


def test_traces() -> None:
    layer, z = layer_and_target()
    assert layer.solve(z, FixedPoint()).trace is None
    solution = layer.solve(z, FixedPoint(keep_trace=True))
    assert solution.trace is not None
    assert solution.trace.shape == (int(solution.steps.max()) + 1, 3)
    torch.testing.assert_close(solution.trace.amin(0), solution.residual)
    z[1] = float("nan")
    assert layer.solve(z, FixedPoint(keep_trace=True)).trace is not None


def test_step_3_5_diverges_on_trained_layers() -> None:
    solver = FixedPoint(step=3.5, allow_any_step=True)
    found = trained_places((0, *HARD, 15, 36, 39))
    assert len(found) == 6
    for layer, _, z in found:
        solution = layer.solve(z, solver)
        assert solution.status.tolist() == [Status.DIVERGED] * 2, layer.name
        assert bool(solution.value.isnan().all())
        assert not bool(solution.residual.isfinite().any())
        with pytest.raises(InversionError) as info:
            solution.require(REMEDY)
        message = str(info.value)
        assert info.value.solution.status.tolist() == [Status.DIVERGED] * 2
        for words in (layer.name, "2 of 2 samples", "2 diverged", "worst residual", "mintnet.Auto"):
            assert words in message
        assert "\n" not in message
    with pytest.raises(InversionError, match="2 of 2 samples not verified"):
        layer.inverse(z, solver)
    with pytest.raises(InversionError, match="diverged"), torch.no_grad():
        trained_flow().net.inverse(torch.randn(1, 16, 7, 7), solver)


def test_damped_steps_break_the_circle() -> None:
    places = trained_places(HARD)
    assert not bool(places[1][0].solve(places[1][2], FixedPoint()).converged.any())
    for layer, _, z in places:
        damped = layer.solve(z, FixedPoint(damped=True))
        assert bool(damped.converged.all()) and int(damped.steps.max()) < 60
        assert (layer(damped.value)[0] - z).abs().max() <= 1e-5 * z.abs().max()
    easy, _, z = trained_places((0,))[0]
    full, damped = (easy.solve(z, FixedPoint(damped=damped)) for damped in (False, True))
    assert bool((damped.steps <= full.steps + 3).all())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_damped_steps_of_one_entry(sign: float) -> None:
    """Flat, steep, flat: full steps jump across for ever, whichever way the function goes."""
    bijection = Composed(sign * (0.1 * Identity() + Tanh()), (1,)).double()
    z = torch.zeros(1, 1, dtype=torch.float64)

    def solve(damped: bool) -> Solution:
        solver = FixedPoint(damped=damped, max_steps=60)
        system = replace(bijection.system(), start=lambda z: torch.full_like(z, 1.5))
        return solver.solve(system, z + 1e-3)

    assert not bool(solve(False).converged.all())
    assert bool(solve(True).converged.all())


@torch.no_grad()
def test_auto_counts_the_steps_of_channel_blocks() -> None:
    layer = away_from_zero(MintLayer(3, 4, (5, 5)), 1)
    found = layer.solve(layer(torch.randn(4, 3, 5, 5))[0])
    assert bool(found.converged.all()) and int(found.steps.min()) >= 2
    assert bool((found.evaluations == found.steps + 1).all())
