"""Captured steps on a GPU; skipped where there is none."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mintnet import Auto, Chain, FixedPoint, MintLayer, MixtureLayer, Squeeze, Wavefront
from mintnet.graphs import capture
from mintnet.solvers import levels
from registry import away_from_zero, normal_mint

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def _layer(seed: int = 0, upper: bool = False) -> MintLayer:
    return normal_mint(3, 7, (8, 6), upper, seed, std=0.2).cuda()


def _targets(layer: MintLayer, count: int = 9) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, *layer.event_shape, device="cuda")
    return x, layer(x)[0].detach()


@torch.no_grad()
@pytest.mark.parametrize("solver", [FixedPoint(), FixedPoint(0.7), FixedPoint(damped=True)])
@pytest.mark.parametrize("upper", [False, True])
def test_captured_steps_are_eager_steps(solver: FixedPoint, upper: bool) -> None:
    layer = _layer(upper=upper)
    _, z = _targets(layer)
    eager = layer.solve(z, replace(solver, keep_trace=True))  # with a trace, steps are eager
    for _ in range(3):
        captured = layer.solve(z, solver)
        assert torch.equal(eager.status, captured.status)
        assert (eager.value - captured.value).abs().max() < 1e-4
        assert bool(captured.converged.all())


@torch.no_grad()
def test_auto_gives_the_same_bits_in_every_call() -> None:
    """Also after other solves, which leave its solution alone, and in a copy of the layer."""
    layer = _layer()
    x, z = _targets(layer, 64)
    first = layer.solve(z).value
    for solver in (Auto(), FixedPoint()):
        layer.solve(_targets(layer, 64)[1], solver)
    layer.solve(z[:5])
    assert (first - x).abs().max() < 1e-3
    assert all(torch.equal(first, layer.solve(z).value) for _ in range(3))
    assert (copy.deepcopy(layer).inverse(z) - x).abs().max() < 1e-3
    algorithm_1 = layer.solve(z, FixedPoint()).value
    layer.solve(_targets(layer, 64)[1], FixedPoint())
    assert (algorithm_1 - x).abs().max() < 1e-3


@torch.no_grad()
def test_captured_steps_see_weights_that_change() -> None:
    layer = _layer()
    _, z = _targets(layer)
    first = layer.solve(z, FixedPoint()).value
    layer.weight1.mul_(0.5)
    layer.weight2.data.mul_(0.5)
    second = layer.solve(z, FixedPoint()).value
    assert (layer(second)[0] - z).abs().max() < 1e-4 and (second - first).abs().max() > 1e-3
    layer.weight3 = torch.nn.Parameter(layer.weight3 * 0.5)
    assert (layer(layer.solve(z, FixedPoint()).value)[0] - z).abs().max() < 1e-4
    layer.cpu().double().cuda()
    assert (layer(layer.solve(z.double(), FixedPoint()).value)[0] - z.double()).abs().max() < 1e-9


@torch.no_grad()
def test_threads_do_not_disturb_each_other() -> None:
    layers = [_layer(seed) for seed in range(4)]
    pairs = [_targets(layer) for layer in layers]

    def error(number: int) -> float:
        (x, z), layer = pairs[number % 4], layers[number % 4]
        with torch.no_grad():
            return float((layer.inverse(z) - x).abs().max())

    with ThreadPoolExecutor(4) as threads:
        assert max(threads.map(error, range(20))) < 1e-3


@torch.no_grad()
def test_random_numbers_survive_a_capture_that_fails() -> None:
    x = torch.ones(3, device="cuda")
    run = capture(lambda: x.sum().item(), x.device)  # waits for the device, which no graph can
    assert run() == 3.0
    torch.manual_seed(4)
    first = torch.randn(5, device="cuda")
    torch.manual_seed(4)
    assert torch.equal(first, torch.randn(5, device="cuda"))


@torch.no_grad()
def test_captured_walks_outlive_those_of_other_shapes(monkeypatch) -> None:
    """A graph reads index tensors of its shape, which nothing else may free."""
    monkeypatch.setattr(levels, "MOST_WALKS", 64)
    shapes = [(c, h) for c in (1, 2, 3) for h in (4, 5, 6, 7)]
    layers = [normal_mint(c, 5, (h, h), False, h, std=0.2).cuda() for c, h in shapes]
    layers += [away_from_zero(MixtureLayer(2, 4, (h, h)), h).cuda() for h in (4, 5, 6)]
    targets = [layer(torch.randn(7, *layer.event_shape, device="cuda"))[0] for layer in layers]
    first = [layer.solve(z, Wavefront()) for layer, z in zip(layers, targets, strict=True)]
    assert all(bool(found.converged.all()) for found in first)
    for layer, z, found in zip(layers, targets, first, strict=True):
        for again in (layer.solve(z, Wavefront()), layer.solve(z, Wavefront())):
            assert torch.equal(found.value, again.value)


@torch.no_grad()
def test_layers_that_share_a_walk_keep_their_weights() -> None:
    torch.manual_seed(0)
    layers = [normal_mint(3, 8, (8, 8), index % 2 == 1, index, std=0.2) for index in range(4)]
    chain = Chain(*layers).cuda().eval()
    before, z = copy.deepcopy(chain.state_dict()), torch.randn(64, 3, 8, 8, device="cuda")
    first = chain.inverse(z, Wavefront())
    assert all(torch.equal(first, chain.inverse(z, Wavefront())) for _ in range(3))
    assert all(torch.equal(before[name], value) for name, value in chain.state_dict().items())


@torch.no_grad()
def test_chains_and_odd_batches() -> None:
    chain = Chain(_layer(0), Squeeze(2, (3, 8, 6)), normal_mint(12, 2, (4, 3), seed=3, std=0.1))
    chain = chain.cuda().eval()
    for count in (1, 2, 5, 64):
        x = torch.randn(count, 3, 8, 6, device="cuda")
        z = chain(x)[0]
        for _ in range(3):
            assert (chain.inverse(z) - x).abs().max() < 1e-3
    z[0, 0] = float("nan")
    assert chain.solve(z).converged.tolist() == [False] + [True] * 63
