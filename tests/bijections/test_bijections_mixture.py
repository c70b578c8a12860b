"""Mixture layers: safe far outside the data, proved onto, each activation computed once."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from mintnet import Auto, FixedPoint, MintLayer, MixtureLayer, Wavefront
from mintnet.bijections.grey_levels import SHARE, GreyLevelMixture, between_knots
from mintnet.bijections.logistics import Mixture
from mintnet.bijections.mixture import T_FLOOR, MixtureMap
from mintnet.solvers.levels import LevelWalk
from mintnet.solvers.schedule import LevelCache
from registry import away_from_zero


def _mixtures(count: int, components: int, spread: float, seed: int = 0) -> Mixture:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, slope, offset = (normal(count, components) for _ in range(3))
    return Mixture(
        (3 * weight).log_softmax(-1),
        spread * slope,
        4 * offset,
        normal(count),
        torch.full((count,), T_FLOOR, dtype=torch.float64),
    )


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_slopes_are_those_of_autograd_and_right_in_float32(size: float, spread: float) -> None:
    mixtures = _mixtures(500, 6, spread)
    x = (size * torch.randn(500, dtype=torch.float64)).requires_grad_()
    value, slope = mixtures.value_and_slope(x)
    (expected,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(slope, expected, rtol=1e-9, atol=0)
    single = Mixture(*(part.float() for part in mixtures))
    rounded = x.detach().float()
    exact = Mixture(*(part.double() for part in single)).value_and_slope(rounded.double())[1].log()
    found = single.value_and_slope(rounded)[1].log()
    assert bool(found.isfinite().all())
    assert float((found - exact).abs().max()) <= 1e-4 * float(exact.abs().max())


@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("components", [1, 5])
def test_scalar_inverse(size: float, components: int) -> None:
    mixtures = _mixtures(400, components, 2.0)
    x = size * torch.randn(400, dtype=torch.float64)
    y = mixtures.value_and_slope(x)[0]
    low, high = mixtures.bracket(y)
    assert bool(((low <= x + 1e-9 * size) & (x - 1e-9 * size <= high)).all())
    torch.testing.assert_close(mixtures.invert(y), x, rtol=1e-9, atol=1e-9)


def _grey_levels(count: int, levels: int, spread: float, seed: int = 0) -> GreyLevelMixture:
    widths = torch.rand(levels + 1, generator=torch.Generator().manual_seed(seed)).double() + 0.1
    knots = 2 * widths.cumsum(0) / widths.sum() - 1
    return GreyLevelMixture(*_mixtures(count, 5, spread, seed)[:4], knots)


@pytest.mark.parametrize("levels", [1, 2, 17, 256])
def test_densities_of_pixels_are_those_of_their_grey_levels(levels: int) -> None:
    """Constant within a level; with the tails, the probabilities of all levels sum to one."""
    mixtures = _grey_levels(200, levels, 2.0)
    edges = torch.linspace(0, 1, levels + 1, dtype=torch.float64)
    masses = mixtures.value(edges.expand(200, -1)).sigmoid().diff()
    outside = SHARE * 2 / (levels + 2)
    torch.testing.assert_close(masses.sum(1), torch.full((200,), 1 - outside).double())
    for place in (0.01, 0.5, 0.9):
        x = (edges[:-1] + place / levels).expand(200, -1)
        for level in range(0, levels, 5):
            value, slope = mixtures.value_and_slope(x[:, level])
            density = slope * value.sigmoid() * (-value).sigmoid()
            found, expected = density / levels, masses[:, level]
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)
    weight, slope, offset, centre, knots = mixtures
    u = slope.exp() * (knots[:, None, None] - centre[:, None]) - offset  # (L + 1, count, M)
    below = (weight.exp() * u.sigmoid()).sum(-1)
    below[0], below[-1] = 0, 1
    expected = (1 - SHARE) * below.diff(dim=0) + SHARE / (levels + 2)
    torch.testing.assert_close(masses, expected.T, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("spread", [0.5, 3.0])
@pytest.mark.parametrize("size", [0.5, 3.0, 1e4])
def test_pixels_slopes_inverse_and_float32(spread: float, size: float) -> None:
    mixtures = _grey_levels(500, 17, spread)
    x = (0.5 + size * torch.randn(500, dtype=torch.float64)).requires_grad_()
    value, slope = mixtures.value_and_slope(x)
    (expected,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(slope, expected, rtol=1e-9, atol=0)
    back = mixtures.invert(value.detach())
    torch.testing.assert_close(mixtures.value_and_slope(back)[0], value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(back, x.detach(), rtol=1e-9, atol=1e-6)
    single = GreyLevelMixture(*(part.float() for part in mixtures))
    exact = GreyLevelMixture(*(part.double() for part in single))
    rounded = x.detach().float()
    found, right = single.value_and_slope(rounded)[1], exact.value_and_slope(rounded.double())[1]
    torch.testing.assert_close(found.log().double(), right.log(), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_what_is_not_a_number_is_no_level() -> None:
    layer = MixtureLayer(1, 2, (3, 3), 1, 2, levels=5).double()
    x = torch.full((2, 1, 3, 3), 0.3, dtype=torch.float64)
    x[1] = float("nan")
    y, slope = layer.evaluate(x)
    assert bool(y[0].isfinite().all()) and bool(y[1].isnan().all() & (slope[0] > 0).all())
    layer.network.convolutions[-1].weight.fill_(1e300)
    assert bool(layer.solve(torch.ones_like(x)).value.isfinite().all())


@torch.no_grad()
def test_knots_are_in_order_whatever_the_weights_are_and_follow_the_grey_levels() -> None:
    layer = MixtureLayer(1, 2, (3, 3), 1, 2, levels=5)
    layer.equalize(torch.tensor([0] * 90 + [1, 2, 2] + [4] * 20))
    steps = layer.t_or_knots.diff()
    assert bool((steps > 0).all()) and int(steps.argmax()) == 0
    x = torch.linspace(-1.5, 1.5, 301)
    assert bool((between_knots(x, layer.t_or_knots).diff() >= 0).all())
    layer.raw_knots.normal_()
    assert bool((layer.t_or_knots.diff() >= 0).all()) and layer.certify().onto
    layer.raw_knots[2] = float("nan")
    assert not layer.certify().injective


def test_the_proof_holds_for_any_finite_weights() -> None:
    layer = away_from_zero(MixtureLayer(2, 3, (3, 3), 1, 2), 1, 50.0)
    proof = layer.certify()
    assert proof.onto and bool((proof.low >= T_FLOOR).all())
    assert float(proof.high.max()) < float(layer.t_or_knots.detach().max()) + math.exp(9.0) * 1.001
    with torch.no_grad():
        layer.network.convolutions[1].weight[0, 0, 0, 0] = float("nan")
    assert not layer.certify().injective


@torch.no_grad()
@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize(
    ("shape", "order", "levels"),
    [
        ((3, 4, 5), "raster", 4 * 2 + 2 * 3 + 5),
        ((3, 4, 5), "pixel", 2 * 3 + 5),
        ((7,), "raster", 7),
    ],
)
def test_the_wavefront_has_as_many_levels_at_any_depth(
    shape: tuple[int, ...],
    order: str,
    levels: int,
    blocks: int,
    monkeypatch,  # type: ignore[no-untyped-def]
) -> None:
    """Every activation is computed once: a convolution is asked once on each of the levels."""
    layer = away_from_zero(MixtureLayer(shape[0], 2, shape[1:], blocks, 2, order=order), 1)
    x = torch.randn(2, *shape)
    asked: list[int] = []
    known = LevelCache.known_part

    def counted(self: LevelCache, number: int) -> Tensor:
        asked.append(number)
        return known(self, number)

    monkeypatch.setattr(LevelCache, "known_part", counted)
    found = layer.solve(layer(x)[0], Wavefront())
    assert found.steps.tolist() == [levels] * 2 and bool(found.converged.all())
    assert len(asked) == levels * (2 * blocks + (2 if order == "pixel" else 3))


@torch.no_grad()
def test_a_captured_walk_serves_every_layer_of_its_shape() -> None:
    """On a CPU a walk is its own replay. It leaves the weights of the layers alone."""
    layers = [away_from_zero(MixtureLayer(2, 3, (4, 4), 2, 3), seed) for seed in (1, 2)]
    x, before = torch.randn(3, 2, 4, 4), [copy.deepcopy(layer.state_dict()) for layer in layers]
    functions, codes = [MixtureMap(layer) for layer in layers], [layer(x)[0] for layer in layers]
    walk = LevelWalk(functions[0], codes[0])
    for number in (1, 0, 1):
        f = functions[number]
        found = walk.replayed(f.convolutions(), f.constants(None), codes[number])
        torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-4)
    for layer, kept in zip(layers, before, strict=True):
        assert all(torch.equal(kept[name], value) for name, value in layer.state_dict().items())


@torch.no_grad()
@pytest.mark.parametrize("solver", [Auto(), Wavefront(), FixedPoint(damped=True)])
@pytest.mark.parametrize("shape", [(2, 4, 4), (5,), (1,)], ids=str)
def test_a_context_reaches_every_sample_by_itself(solver: object, shape: tuple[int, ...]) -> None:
    layer = away_from_zero(MixtureLayer(shape[0], 3, shape[1:], 2, 3, context=5), 1).double()
    x, context = torch.randn(4, *shape, dtype=torch.float64), torch.randn(4, 5).double()
    given = layer.given(context)
    y, log_det = given(x)
    one, alone = layer.given(context[2:3])(x[2:3])
    torch.testing.assert_close((one, alone), (y[2:3], log_det[2:3]))
    assert float((layer.given(context.flip(0))(x)[0] - y).abs().max()) > 1e-3
    z = y.clone()
    z[1] = float("nan")  # a sample that is left out takes its context with it
    found = given.solve(z, solver)  # type: ignore[arg-type]
    assert found.converged.tolist() == [True, False, True, True]
    torch.testing.assert_close(found.value[2:], x[2:], rtol=1e-7, atol=1e-7)
    assert given.certify().onto


def test_a_context_that_does_not_fit(raises_with) -> None:  # type: ignore[no-untyped-def]
    x = torch.zeros(2, 1, 3, 3)
    layer = MixtureLayer(1, 2, (3, 3), 1, 2, context=5)
    with raises_with(ValueError, "(samples, 5)", "got none", "given"):
        layer(x)
    with raises_with(ValueError, "(samples, 5)", "got (5,)"):  # of one sample, without its axis
        layer.given(torch.zeros(5))
    with raises_with(ValueError, "expected none", "got (2, 3)"):
        MixtureLayer(1, 2, (3, 3), 1, 2).given(torch.zeros(2, 3))
    layer.compile()  # the copy is not bound to what was compiled
    assert layer.given(torch.zeros(2, 5))._compiled_call_impl is None


@pytest.mark.parametrize("size", [1, (4,), (2, 2, 2), (0, 3)], ids=str)
def test_a_size_that_is_none(size: object, raises_with) -> None:  # type: ignore[no-untyped-def]
    expected = ("height",) if size == (0, 3) else ("(height, width)", "() for vectors", "size=()")
    with raises_with(ValueError, *expected):
        MixtureLayer(2, 3, size)  # type: ignore[arg-type]
    with raises_with(ValueError, "height"):
        MintLayer(2, 3, size)  # type: ignore[arg-type]


@torch.no_grad()
def test_initialized_from_vectors_it_is_a_linear_model() -> None:
    layer = MixtureLayer(3, 4, (), 1, 4)
    x = torch.randn(200, 3) @ torch.tensor([[1.0, 2.0, -1.0], [0, 0.5, 1.0], [0, 0, 0.1]])
    before = layer(x)[1].mean()
    layer.initialize(x)
    spread = (layer.network.prediction(x) - x).std(0).tolist()
    assert spread == pytest.approx([1, 0.5, 0.1], rel=0.3)
    assert float(layer(x)[1].mean()) > float(before) + 3


@torch.no_grad()
def test_initialized_from_images_it_explains_linear_ones() -> None:
    """Rows that repeat the row above: the prediction is that row, and components are narrow."""
    layer = MixtureLayer(1, 3, (8, 8), 1, 4)
    x = torch.randn(64, 1, 1, 8).expand(-1, -1, 8, -1) + 0.01 * torch.randn(64, 1, 8, 8)
    before = layer(x)[1].mean()
    layer.initialize(x)
    assert float((layer.network.prediction(x) - x)[:, :, 1:].std()) < 0.1
    assert float(layer(x)[1].mean()) > float(before) + 20
