"""Channels in turn: blocks of a layer solved one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mintnet import Auto, Composed, FixedPoint, InTurn, MintLayer, StructureError, Wavefront
from mintnet.bijections.mint_blocks import MintBlocks
from mintnet.calculus import Identity, Tanh
from mintnet.solvers import captured, in_turn
from mintnet.solvers.captured import CapturedSolve, solve_captured


def _layer(channels: int, upper: bool = False, size: int = 3, std: float = 0.3) -> MintLayer:
    torch.manual_seed(channels + size)
    layer = MintLayer(channels, 3, (6, 5), upper, kernel_size=size)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return layer.eval()


def _residual(layer: MintLayer, x: Tensor, z: Tensor) -> Tensor:
    return (layer(x)[0] - z).abs().flatten(1).amax(1) / z.abs().flatten(1).amax(1)


@torch.no_grad()
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("channels", [2, 3, 5, 12])
def test_blocks_are_the_layer(channels: int, size: int, upper: bool) -> None:
    layer = _layer(channels, upper, size).double()
    x = torch.randn(4, channels, 6, 5, dtype=torch.float64)
    y, slope = layer.evaluator()(x)
    blocks = layer.blocks()
    assert blocks is not None
    solved, seen = blocks.begin(x), []
    for index, part in enumerate(blocks.channels):
        given, offset = solved.given()
        own, own_slope = blocks.evaluator(index)(x[:, part], given)
        assert torch.allclose(own + offset, y[:, part], atol=1e-12)
        assert torch.allclose(own_slope, slope[:, part], atol=1e-12)
        solved.add(x[:, part], given)
        seen += range(part.start, part.stop)
    assert sorted(seen) == list(range(channels)) and 2 <= len(blocks.channels) <= 4


@torch.no_grad()
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("channels", [2, 3, 7, 16])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-12)])
def test_channels_in_turn_find_what_the_wavefront_finds(
    channels: int, upper: bool, dtype: torch.dtype, tolerance: float
) -> None:
    layer = _layer(channels, upper, std=0.5 / channels**0.5).to(dtype)
    z = layer(3 * torch.randn(5, channels, 6, 5, dtype=dtype))[0]
    found, exact = layer.solve(z, InTurn()), layer.solve(z, Wavefront())
    assert bool(found.converged.all()) and bool(exact.converged.all())
    assert (_residual(layer, found.value, z) <= tolerance).all()
    apart = (found.value - exact.value).abs().max()
    assert apart <= 1e3 * tolerance * exact.value.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("std", [1.0, 3.0, 10.0])
def test_layers_that_are_hard_on_purpose_are_certified_or_refused(std: float) -> None:
    layer = _layer(3, std=std)
    z = layer(5 * torch.randn(8, 3, 6, 5))[0]
    found = layer.solve(z, InTurn(steps=FixedPoint(max_steps=30, watch=True), last=2))
    ok = found.converged
    assert (_residual(layer, found.value[ok], z[ok]) < 1e-5).all()
    assert std < 5 or not bool(ok.all())  # else this shows nothing
    assert not bool(found.value[~ok & (found.residual == float("inf"))].isfinite().any())


@torch.no_grad()
def test_a_sample_that_is_lost_takes_no_other_with_it() -> None:
    layer = _layer(3)
    z = layer(torch.randn(4, 3, 6, 5))[0]
    alone = layer.solve(z[1:], InTurn())
    z[0] = 1e30
    found = layer.solve(z, InTurn(steps=FixedPoint(max_steps=20)))
    assert bool(found.converged[1:].all())
    assert torch.allclose(found.value[1:], alone.value, atol=1e-4)
    assert (found.steps > 0).all() and torch.equal(found.evaluations, found.steps + 1)


@torch.no_grad()
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("upper", [False, True])
def test_recorded_blocks_are_plain_blocks(
    monkeypatch: pytest.MonkeyPatch, slow: bool, upper: bool
) -> None:
    """With functions in the place of recordings; samples leave, and take what is given along."""
    monkeypatch.setattr(captured, "SLOW", 0.0 if slow else 1e9)
    monkeypatch.setattr(captured, "FEWEST", 2)
    layer = _layer(3, upper)
    sizes = torch.logspace(-0.5, 1.5, 33)
    z = layer(sizes[:, None, None, None] * torch.randn(33, 3, 6, 5))[0]
    scale = z.abs().flatten(1).amax(1)
    plain = InTurn()._solve(layer.system(), z, scale)
    graphs: list[CapturedSolve] = []  # type: ignore[type-arg]

    def recorded(solver, system, z, scale, start=None):  # type: ignore[no-untyped-def]
        name = system.name
        found = solve_captured(system, z, scale, solver._iteration(name), solver.max_steps, start)
        graphs.extend(system.memory["captured"].values())
        assert found is not None
        return found

    monkeypatch.setattr(in_turn.FixedPoint, "_solve", recorded)
    system = layer.system()
    for _ in range(3):
        found = InTurn()._solve(system, z, scale)
        assert torch.equal(found.status, plain.status) and bool(found.converged.all())
        assert (_residual(layer, found.value, z) <= 5e-6).all()
        assert torch.allclose(found.value, plain.value, atol=1e-4, rtol=1e-4)
    assert (len({len(graph.z) for graph in graphs}) > 1) == slow
    shared = {id(graph.given) for graph in graphs if graph.given is not None}
    assert len(shared) == len({len(graph.z) for graph in graphs if graph.given is not None})


@torch.no_grad()
def test_recorded_blocks_begin_with_the_weights_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recording outlives the solve that made it, and must not read what belonged to that."""
    layer, begun = _layer(3), []
    z = layer(torch.randn(4, 3, 6, 5))[0]
    start = MintBlocks.start

    def recorded(solver, system, z, scale, start=None):  # type: ignore[no-untyped-def]
        steps = solver._iteration(system.name)
        return solve_captured(system, z, scale, steps, solver.max_steps, start)

    def noted(blocks: MintBlocks, index: int, z: Tensor) -> Tensor:
        begun.append(torch.equal(blocks.t, layer.t))
        return start(blocks, index, z)

    monkeypatch.setattr(in_turn.FixedPoint, "_solve", recorded)
    monkeypatch.setattr(MintBlocks, "start", noted)
    system = layer.system()
    for _ in range(2):
        found = InTurn()._solve(system, z, z.abs().flatten(1).amax(1))
        assert found is not None and bool(found.converged.all())
        layer.raw_t.add_(3.0)
    assert begun and all(begun)


@pytest.mark.parametrize("options", [{"last": -1}, {"steps": FixedPoint(keep_trace=True)}])
def test_options_that_mean_nothing_are_refused(options: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=r"last counts steps|no trace in common"):
        InTurn(**options)


@torch.no_grad()
def test_a_map_without_blocks_says_so() -> None:
    plain = Composed(3.0 * Identity() + Tanh(), (2, 4, 4))
    for layer in (MintLayer(1, 3, (4, 4)), plain):
        with pytest.raises(StructureError, match="no blocks of channels"):
            layer.solve(torch.randn(2, *layer.event_shape), InTurn())


@torch.no_grad()
def test_auto_goes_to_channels_in_turn_where_they_are_fastest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = _layer(3, std=0.6)
    z = layer(4 * torch.randn(6, 3, 6, 5))[0]
    layer.solve(z, Auto())
    experience = next(v for k, v in layer._memory().items() if k[0] == "auto")
    assert experience.hard
    layer.solve(z, Auto())
    assert experience.explored and experience.seconds["channels in turn"] < float("inf")
    experience.seconds |= dict.fromkeys(experience.seconds, 1e9)
    experience.seconds["channels in turn"] = 0.0
    called: list[str] = []
    whole = InTurn._solve

    def noted(self: InTurn, *arguments):  # type: ignore[no-untyped-def]
        called.append("in turn")
        return whole(self, *arguments)

    monkeypatch.setattr(InTurn, "_solve", noted)
    assert bool(layer.solve(z, Auto()).converged.all()) and called == ["in turn"]


@torch.no_grad()
def test_weights_that_change_are_seen() -> None:
    layer = _layer(3)
    z = layer(torch.randn(4, 3, 6, 5))[0]
    first = layer.solve(z, InTurn())
    layer.weight2.mul_(0.5)
    second = layer.solve(z, InTurn())
    assert bool(first.converged.all()) and bool(second.converged.all())
    assert (_residual(layer, second.value, z) < 5e-6).all()
    assert replace(first).value.sub(second.value).abs().max() > 1e-3
