"""Density models of mixture layers: likelihood, inverse, labels, bounds, files."""

from __future__ import annotations

import math

import pytest
import torch

from mintnet import Flow, FlowDistribution
from mintnet.bijections.mixture_network import SLOW
from mintnet.models.deep import DEEP_PRESETS, DeepConfig
from mintnet.models.noise import BASES
from registry import away_from_zero


def _flow(classes: int = 0, order="pixel") -> Flow:
    config = DeepConfig((1, 4, 4), (2, 1), (3, 2), (1, 1), (3, 2), classes, order)
    return away_from_zero(Flow(config, None, levels=17), 2).eval()  # type: ignore[return-value]


IMAGES = torch.randint(0, 17, (5, 1, 4, 4), generator=torch.Generator().manual_seed(0)).byte()


@pytest.mark.parametrize("name", DEEP_PRESETS)
def test_presets_fit_their_data(name: str) -> None:
    flow = Flow.preset(name)
    assert flow.shape == Flow.preset(name.removesuffix("-deep")).shape
    assert flow.base_name == "logistic" and flow.net.parameter_count() < 10_000_000


@torch.no_grad()
@pytest.mark.parametrize(("classes", "order"), [(0, "raster"), (0, "pixel"), (3, "pixel")])
def test_round_trip_and_map(classes: int, order: str) -> None:
    flow = _flow(classes, order)
    labels = torch.tensor([0, 1, 2, 0, 1]) if classes else None
    assert flow.log_prob(IMAGES[:0], labels=labels[:0] if classes else None).shape == (0,)
    assert torch.equal(flow.decode(flow.encode(IMAGES, labels=labels), labels=labels), IMAGES)
    nats = flow.double().log_prob(IMAGES, labels=labels)
    found = flow.log_prob_map(IMAGES, labels=labels)
    torch.testing.assert_close(found.sum((1, 2, 3)), nats, rtol=1e-9, atol=0)


@torch.no_grad()
def test_labels_classify_by_bayes_rule() -> None:
    flow = _flow(3).double()
    each = torch.stack([flow.log_prob(IMAGES, labels=label) for label in range(3)], 1)
    torch.testing.assert_close(flow.classify(IMAGES), each.log_softmax(1))
    torch.testing.assert_close(flow.log_prob(IMAGES), each.logsumexp(1) - math.log(3))
    mixed = flow.log_prob(IMAGES, labels=torch.tensor([2, 1, 0, 0, 2]))
    torch.testing.assert_close(mixed[1], each[1, 1])
    assert flow.sample(4, seed=0, labels=2).shape == (4, 1, 4, 4)
    assert not torch.equal(flow.sample(8, seed=0, labels=1), flow.sample(8, seed=0, labels=0))


def test_labels_that_do_not_fit(raises_with) -> None:  # type: ignore[no-untyped-def]
    with raises_with(ValueError, "no classes", "no labels"):
        _flow().log_prob(IMAGES, labels=1)
    with raises_with(ValueError, "0 to 2", "got [3]"):
        _flow(3).log_prob(IMAGES, labels=3)
    with raises_with(ValueError, "not class-conditional", "--labels"):
        _flow().classify(IMAGES)
    with raises_with(ValueError, "bound", "mean or importance"):
        _flow().log_prob(IMAGES, bound="best")
    with raises_with(ValueError, "draw", "0"):
        _flow().log_prob(IMAGES, draws=0)


@torch.no_grad()
def test_the_first_layer_gives_each_grey_level_its_probability() -> None:
    """Of one pixel nothing is lost to dequantization: all draws agree, and levels sum to one."""
    flow = Flow(DeepConfig((1, 1, 1), (1,), (2,), (1,), (3,)), None, levels=17).double().eval()
    away_from_zero(flow, 1)
    every = torch.arange(17).view(-1, 1, 1, 1).byte()
    nats = torch.stack([flow.log_prob(every, draw=draw) for draw in range(3)])
    torch.testing.assert_close(nats[1:], nats[:1].expand(2, -1), rtol=1e-9, atol=1e-9)
    assert float(nats[0].exp().sum()) == pytest.approx(1, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("level", [0, 9, 255])
def test_where_a_level_is_all_but_certain_samples_are_verified_all_the_same(level: int) -> None:
    flow = Flow(DeepConfig((1, 4, 4), (1,), (3,), (1,), (2,)), None).eval()
    network = flow.net.layers()[0].network
    network.linear.bias[:] = ((level + 0.5) / 128 - 1) / SLOW
    network.convolutions[-1].weight.zero_()
    network.convolutions[-1].bias[4:6] = -9.0  # the widths of both components
    images = flow.sample(16, temperature=3.0, seed=0)
    assert float((images == level).float().mean()) > 0.9
    assert torch.equal(flow.decode(flow.encode(images)), images)
    image, mask = images[0], torch.ones(4, 4, dtype=torch.bool)
    assert flow.restore(image, mask=mask, n=2).samples.shape == (2, 1, 4, 4)
    assert FlowDistribution(flow).dequantized().sample((2,)).shape == (2, 1, 4, 4)


@torch.no_grad()
def test_the_importance_bound_is_tighter() -> None:
    flow = _flow().double()
    mean, tight = (flow.log_prob(IMAGES, draws=8, bound=bound) for bound in ("mean", "importance"))
    single = torch.stack([flow.log_prob(IMAGES, draw=draw) for draw in range(8)])
    torch.testing.assert_close(mean, single.mean(0))
    torch.testing.assert_close(tight, single.logsumexp(0) - math.log(8))
    assert bool((tight > mean).all())


@torch.no_grad()
@pytest.mark.parametrize("classes", [0, 3])
def test_saved_and_loaded(classes: int, tmp_path) -> None:  # type: ignore[no-untyped-def]
    flow = _flow(classes)
    flow.save(tmp_path)
    again = Flow.load(tmp_path)
    assert again.describe() == flow.describe() and again.classes == classes
    assert torch.equal(again.log_prob(IMAGES), flow.log_prob(IMAGES))


@pytest.mark.parametrize("name", BASES)
def test_bases_are_distributions_with_a_map_to_the_normal(name: str) -> None:
    base, u = BASES[name], torch.linspace(-9, 9, 2001, dtype=torch.float64)
    z = base.from_normal(u)
    torch.testing.assert_close(base.to_normal(z), u, rtol=1e-6, atol=1e-6)
    assert abs(float(torch.trapezoid(base.log_prob(z).exp(), z)) - 1) < 1e-4
    assert bool((z.diff() > 0).all())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_as_a_distribution(temperature: float) -> None:
    """The density at temperature T integrates to one for one pixel, and T = 1 is `log_prob`."""
    flow = Flow(DeepConfig((1, 1, 1), (1,), (2,), (1,), (3,)), None, levels=2).double().eval()
    away_from_zero(flow, 1, 2.0)
    distribution = FlowDistribution(flow, temperature)
    x = torch.linspace(-60, 60, 200_001, dtype=torch.float64).reshape(-1, 1, 1, 1)
    with torch.no_grad():
        p = flow.log_density(x, distribution._tempered).exp() * 2
    assert abs(float(torch.trapezoid(p, x.flatten(), dim=0)) - 1) < 1e-3
    images = torch.randint(0, 2, (3, 1, 1, 1)).byte()
    if temperature == 1:
        torch.testing.assert_close(distribution.log_prob(images), flow.log_prob(images))
        assert distribution.dequantized().rsample((2,)).shape == (2, 1, 1, 1)
    assert distribution.sample((2,)).shape == (2, 1, 1, 1)
