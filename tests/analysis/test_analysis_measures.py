"""What is computed about models, against the formulas."""

import math
from dataclasses import replace

import pytest
import torch

from mintnet.analysis import (
    error_curve,
    interpolate,
    layer_rows,
    overview,
    reconstruct,
    round_trip,
    tune_step,
)
from mintnet.analysis.interpolation import ANGLES
from mintnet.analysis.reconstruction import FLOOR, ErrorCurve, algorithm_1, pixel_error
from mintnet.data import ImageData
from mintnet.models import Classifier
from mintnet.solvers import FixedPoint, Status


def test_reconstruction(flow, images):
    result = reconstruct(flow, images, batch_size=3)
    assert result.exact == len(images)
    assert float(result.errors.max()) < 1e-9
    assert [row.number for row in layer_rows(flow.net, result.solution)] == [1, 2, 3, 4]
    solution = flow.solve(flow.encode(images), FixedPoint(max_steps=0))
    assert sum(row.failures for row in layer_rows(flow.net, solution)) > 0


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
    trip = round_trip(classifier, torch.zeros(3, 1, 8, 8, dtype=torch.uint8), batch_size=1)
    assert len(calls) == 3 and trip.byte_exact == 2
    assert all(map(math.isnan, (trip.residual, trip.worst_pixel_error, trip.padding_energy)))
    assert all(math.isnan(row.residual) for row in trip.layers)


def test_pixel_error_by_hand(flow):
    black = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    y, _ = flow.pixels.transform(torch.full((1, 1, 4, 4), 0.5 / 17 + 0.1))
    assert float(pixel_error(flow, black, y)) == pytest.approx(0.01, rel=1e-5)


def test_parts_between_layers_count_with_the_layer_after_them(flow):
    solution = flow.solve(flow.sample_latents(5, seed=1))
    place = [type(leaf).__name__ for leaf in flow.net.leaves()].index("Squeeze")
    parts = list(reversed(solution.parts))
    parts[place] = replace(parts[place], status=torch.full((5,), int(Status.DIVERGED)))
    rows = layer_rows(flow.net, replace(solution, parts=tuple(reversed(parts))))
    assert [row.number for row in rows if row.failures] == [3]


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
    x = z = flow.encode(images)
    for layer in reversed(flow.net.chain.leaves()):
        target, x = x, layer.start(x) if hasattr(layer, "start") else layer.solve(x).value
        for _ in range(3 if hasattr(layer, "start") else 0):
            y, slope = layer.evaluate(x)
            x = x - 0.4 * (y - target) / slope
    assert torch.allclose(algorithm_1(flow, z, 0.4, 3), x, atol=1e-5)


def test_error_curve(flow, images):
    curve = error_curve(flow, images, 0.5, (0, 2, 60))
    assert curve.errors.shape == (3, len(images))
    assert curve.centre[0] > curve.centre[1] > curve.centre[2] and curve.centre[2] < 1e-10
    lost = error_curve(flow, images, 50.0, (200,))
    assert 0.01 < lost.centre[0] <= 1.0  # it diverges: finite, and as bad as can be


def test_band():
    curve = ErrorCurve(1.0, (1, 2), torch.tensor([[1e-2, 1e-4], [0.0, 0.0]]))
    assert curve.centre[0] == pytest.approx(1e-3) and curve.spread[0] == pytest.approx(10.0)
    assert curve.centre[1] > 0 and curve.spread[1] == 1.0


def test_tuning(flow, images):
    trials = tune_step(flow, images, iterations=4)
    assert max(trials[0].error, FLOOR) == max(min(trial.error for trial in trials), FLOOR)
    assert trials[0].step == 1 / trials[0].divisor
    near = {trial.divisor for trial in trials if trial.round == 2}
    best = next(trial for trial in trials if trial.round == 1).divisor
    around = {round(best + k / 20, 2) for k in range(-10, 11) if best + k / 20 > 0.5}
    assert near == around - {1 + k / 2 for k in range(9)}


def test_overview_is_of_the_flow(flow, images):
    data = ImageData("digits", images, levels=17)
    stages: list[str] = []

    def stage(words):
        stages.append(words)
        return lambda done, total: None

    found = overview(flow, data, "t", samples=4, seed=3, stage=stage)
    expected = flow.bits_per_dim(images, seed=3).double()
    assert found.bits_per_dim == pytest.approx(float(expected.mean()), abs=1e-6)
    assert f"± {float(expected.std()) / math.sqrt(8):.3f}" in found.headlines[0].note
    assert len(found.samples) == 4 and len(found.between) == 64 and len(stages) == 4
    assert all(headline.good for headline in found.headlines)
