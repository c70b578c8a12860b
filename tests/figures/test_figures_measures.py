"""The figures behind the pictures."""

import math
from dataclasses import replace

import pytest
import torch
from mintnet.figures.budget import affordable
from mintnet.figures.gather import bits_per_dim
from mintnet.figures.invertibility import invert_with
from mintnet.figures.round_trip import round_trip
from mintnet.figures.tuning import FLOOR, around

from mintnet.figures import (
    ANGLES,
    ErrorCurve,
    error_curve,
    interpolate,
    join_solutions,
    layer_rows,
    pixel_error,
    reconstruct,
    solve_in_batches,
    tune_step,
)
from mintnet.models import Classifier, Flow, MintNetConfig
from mintnet.solvers import FixedPoint, ResidualIteration


def test_reconstruction(flow, images):
    result = reconstruct(flow, images, batch=3)
    assert result.exact == len(images)
    assert float(result.errors.max()) < 1e-9
    assert result.to_dict()["certified"] == len(images)
    assert [row.number for row in layer_rows(result.solution)] == [1, 2, 3, 4]  # as `info` has it


def test_failed_inversions_have_no_good_figures(monkeypatch):
    """A black image is what NaN would round to; batches after a failure must not hide it."""
    torch.manual_seed(0)
    classifier = Classifier.preset("digits").eval()
    solve, calls = Classifier.solve, []

    def lost(solution):
        nothing = torch.full_like(solution.value, torch.nan)
        residual = torch.full_like(solution.residual, torch.nan)
        return replace(solution, value=nothing, residual=residual)

    def failing_at_first(self, features, solver=None):
        found = solve(self, features, solver)
        calls.append(features)
        if len(calls) > 1:
            return found
        whole = replace(lost(found.solution), parts=tuple(map(lost, found.solution.parts)))
        return replace(found, solution=whole)

    monkeypatch.setattr(Classifier, "solve", failing_at_first)
    trip = round_trip(classifier, torch.zeros(3, 1, 8, 8, dtype=torch.uint8), batch=1)
    assert len(calls) == 3 and trip.byte_exact == 2
    for figure in (trip.residual, trip.worst_pixel_error, trip.mean_square_error):
        assert math.isnan(figure)
    assert math.isnan(trip.padding_energy) and math.isnan(trip.worst_padding_energy)
    assert all(math.isnan(row.error) and math.isnan(row.residual) for row in trip.layers)


def test_pixel_error_by_hand(flow):
    black = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    y, _ = flow.logit.transform(torch.full((1, 1, 4, 4), 0.5 / 17 + 0.1))
    assert float(pixel_error(flow, black, y)) == pytest.approx(0.01, rel=1e-5)


def test_batches_change_nothing(flow):
    z = flow.sample_latents(7, seed=1)
    whole, parts = solve_in_batches(flow, z), solve_in_batches(flow, z, batch=2)
    assert torch.allclose(whole.value, parts.value, atol=1e-5)
    assert parts.residual.shape == (7,) and len(parts.parts) == len(whole.parts)
    assert join_solutions([whole]) is whole


@pytest.mark.parametrize("solver", [None, FixedPoint(), ResidualIteration(200)])
@pytest.mark.parametrize("couplings", [0, 3])
def test_progress_is_told_layer_by_layer_and_changes_nothing(solver, couplings):
    flow = Flow(MintNetConfig((1, 4, 4), (1, 1), (2, 1), couplings=couplings))
    z, told = flow.sample_latents(5, seed=1), []
    silent = solve_in_batches(flow, z, solver, batch=3)
    aloud = solve_in_batches(flow, z, solver, batch=3, tick=told.append)
    assert sum(told) == pytest.approx(5) and all(share > 0 for share in told)
    layers = len(layer_rows(silent))
    assert len(told) == (2 if isinstance(solver, ResidualIteration) else 2 * (layers + 1))
    assert torch.equal(aloud.status, silent.status)
    assert torch.allclose(aloud.value, silent.value, atol=1e-5)


def test_failures_are_counted(flow, images):
    solution = flow.solve(flow.encode(images), FixedPoint(max_steps=0))
    assert sum(row.failures for row in layer_rows(solution)) > 0


def test_interpolation_is_the_formula(flow, images):
    between = interpolate(flow, images[:4])
    assert torch.equal(between[[0, 7, 56, 63]], images[:4])
    z = flow.encode(images[:4])
    phi, psi = ANGLES[2], ANGLES[5]
    mixed = math.cos(phi) * (math.cos(psi) * z[0] + math.sin(psi) * z[1])
    mixed = mixed + math.sin(phi) * (math.cos(psi) * z[2] + math.sin(psi) * z[3])
    assert torch.equal(flow.decode(mixed[None])[0], between[2 * 8 + 5])
    with pytest.raises(ValueError, match="four"):
        interpolate(flow, images[:3])


def test_iterations_are_those_of_algorithm_1(flow, images):
    z = flow.encode(images)
    layer = flow.net.layers()[-1]
    x = layer.start(z)
    for _ in range(3):
        y, slope = layer.evaluate(x)
        x = x - 0.4 * (y - z) / slope
    for layer in reversed(flow.net.chain.leaves()[:-1]):
        target, x = x, layer.start(x) if hasattr(layer, "start") else layer.solve(x).value
        for _ in range(3 if hasattr(layer, "start") else 0):
            y, slope = layer.evaluate(x)
            x = x - 0.4 * (y - target) / slope
    assert torch.allclose(invert_with(flow, z, 0.4, 3), x, atol=1e-5)


def test_error_curve(flow, images):
    curve = error_curve(flow, images, 0.5, (0, 2, 60))
    assert curve.errors.shape == (3, len(images))
    assert curve.centre[0] > curve.centre[1] > curve.centre[2] and curve.centre[2] < 1e-10


def test_band():
    errors = torch.tensor([[1e-2, 1e-4], [0.0, 0.0]])
    curve = ErrorCurve(1.0, (1, 2), errors)
    assert curve.centre[0] == pytest.approx(1e-3) and curve.spread[0] == pytest.approx(10.0)
    assert curve.centre[1] > 0 and curve.spread[1] == 1.0


def test_a_step_that_diverges_counts_as_lost(flow, images):
    curve = error_curve(flow, images, 50.0, (200,))
    assert 0.01 < curve.centre[0] <= 1.0  # finite, and as bad as can be


def test_tuning(flow, images):
    trials = tune_step(flow, images, iterations=4)
    assert max(trials[0].error, FLOOR) == max(min(trial.error for trial in trials), FLOOR)
    assert trials[0].step == 1 / trials[0].divisor
    near = {trial.divisor for trial in trials if trial.round == 2}
    best = next(trial for trial in trials if trial.round == 1).divisor
    assert near == set(around(best)) - {1 + k / 2 for k in range(9)}


def test_bits_per_dim_is_the_flow_s(flow, images):
    mean, error, count = bits_per_dim(flow, images, most=5, seed=3, batch=2)
    expected = flow.bits_per_dim(images[:5], seed=3).double()
    assert mean == pytest.approx(float(expected.mean()), abs=1e-6) and count == 5
    assert error == pytest.approx(float(expected.std()) / math.sqrt(5), abs=1e-6)


def test_affordable(flow, images):
    assert affordable(flow, images, 10**9, 1.0) == 4
    assert affordable(flow, images, 1, 1e9) == affordable(flow, images, 1, 0) == len(images)
