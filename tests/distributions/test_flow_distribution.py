"""A density model as a distribution over images."""

import math

import pytest
import torch
from torch.distributions import Distribution, Independent, Normal, constraints

import mintnet
from mintnet import Flow, FlowDistribution
from mintnet.models import MintNetConfig
from registry import away_from_zero, trained_flow


def small_flow(shape=(1, 4, 4), pairs=(1, 1), filters=(3, 1), lam=0.05, levels=5) -> Flow:
    flow = Flow(MintNetConfig(shape, pairs, filters), lam, levels).double()
    return away_from_zero(flow, 7, 0.8).eval()


@pytest.fixture(scope="module")
def flow() -> Flow:
    return small_flow()


def some_images(flow: Flow, *batch: int) -> torch.Tensor:
    return torch.randint(0, flow.levels, (*batch, *flow.shape), dtype=torch.uint8)


def test_what_it_is(flow: Flow) -> None:
    images = FlowDistribution(flow)
    assert isinstance(images, Distribution)
    assert images.event_shape == flow.shape and images.batch_shape == ()
    assert not images.has_rsample and not images.has_enumerate_support
    assert images.support.is_discrete and images.support.event_dim == 3
    assert bool(images.support.check(some_images(flow)))
    assert not bool(images.support.check(torch.full(flow.shape, flow.levels, dtype=torch.uint8)))
    assert constraints.is_dependent(FlowDistribution.support)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
def test_log_prob_is_that_of_the_flow_in_any_batch_shape(flow: Flow, batch) -> None:
    value = some_images(flow, *batch)
    result = FlowDistribution(flow).log_prob(value)
    assert result.shape == batch
    if value.numel():
        torch.testing.assert_close(result.flatten(), flow.log_prob(value.reshape(-1, *flow.shape)))
    for dtype in (torch.int64, torch.int32, torch.float32, torch.float64):
        assert torch.equal(FlowDistribution(flow).log_prob(value.to(dtype)), result)


def test_draws_are_averaged_and_seeds_differ(flow: Flow) -> None:
    value = some_images(flow, 3)
    each = [flow.log_prob(value, seed=4, draw=k) for k in range(3)]
    together = FlowDistribution(flow, draws=3, seed=4).log_prob(value)
    torch.testing.assert_close(together, torch.stack(each).mean(0))
    assert not torch.equal(each[0], each[1])
    assert not torch.equal(FlowDistribution(flow, seed=5).log_prob(value), each[0])
    images = FlowDistribution(flow, seed=None)  # new noise each time, from torch's generator
    torch.manual_seed(3)
    first, second = images.log_prob(value), images.log_prob(value)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(images.log_prob(value), first)
    images.log_prob(value).sum().backward()  # with gradients in every weight
    assert all(p.grad is not None and bool(p.grad.any()) for p in flow.net.parameters())
    flow.zero_grad()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_samples_come_as_often_as_log_prob_says(temperature: float) -> None:
    """All 81 images of 2 × 2 pixels with 3 levels: P(v) by integration, and by counting."""
    flow = small_flow((1, 2, 2), (1,), (3,), lam=1e-4, levels=3)
    every = torch.cartesian_prod(*[torch.arange(3)] * 4).reshape(-1, 1, 2, 2)
    draws, count = 400, 20_000
    with torch.no_grad():
        each = (FlowDistribution(flow, temperature, seed=s) for s in range(draws))
        logs = torch.stack([distribution.log_prob(every) for distribution in each])
    mass = logs.exp().mean(0)
    assert float(mass.sum()) == pytest.approx(1, abs=0.02)
    assert bool((logs.mean(0) <= mass.log() + 1e-9).all()), "the mean is the lower bound"
    torch.manual_seed(1)
    drawn = FlowDistribution(flow, temperature).sample((count,)).flatten(1).long()
    share = torch.bincount((drawn * torch.tensor([27, 9, 3, 1])).sum(1), minlength=81) / count
    spread = (mass * (1 - mass) / count + logs.exp().var(0) / draws).sqrt()
    assert bool(((share - mass).abs() <= 5 * spread + 1e-4).all())
    assert float((mass - 1 / 81).abs().max()) > 0.02, "a flat distribution hides errors"


@pytest.mark.parametrize(("sample", "batch"), [((), ()), ((2, 1), (3,)), ((0,), (3,)), ((3,), ())])
def test_samples_are_images(flow: Flow, sample, batch) -> None:
    images = FlowDistribution(flow).expand(batch)
    value = images.sample(sample)
    assert value.shape == (*sample, *batch, *flow.shape) and value.dtype == torch.uint8
    assert not value.numel() or bool(images.support.check(value).all())
    assert images.log_prob(value).shape == (*sample, *batch)


def test_samples_follow_torchs_seed_and_the_temperature(flow: Flow) -> None:
    torch.manual_seed(2)
    first = FlowDistribution(flow, temperature=0.5).sample((4,))
    torch.manual_seed(2)
    assert torch.equal(flow.sample(4, temperature=0.5), first)
    assert not torch.equal(flow.sample(4, temperature=0.5), first)


def test_expand_keeps_every_option(flow: Flow) -> None:
    images = FlowDistribution(flow, 0.7, draws=2, seed=9, solver=mintnet.Wavefront())
    wide = images.expand((2, 3))
    assert wide.batch_shape == (2, 3) and wide.event_shape == flow.shape
    assert (wide.temperature, wide.draws, wide.seed) == (0.7, 2, 9)
    assert wide.flow is flow and wide.solver == mintnet.Wavefront()
    value = some_images(flow)
    torch.testing.assert_close(wide.log_prob(value), images.log_prob(value).expand(2, 3))
    value = some_images(flow, 2, 3)
    torch.testing.assert_close(wide.log_prob(value), images.log_prob(value))
    assert wide.expand((5, 2, 3)).log_prob(value).shape == (5, 2, 3)
    with pytest.raises(ValueError, match="cannot be expanded"):
        wide.expand((2, 4))
    assert Independent(images.expand((3,)), 1).log_prob(some_images(flow, 2, 3)).shape == (2,)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_dequantized_is_the_continuous_density(flow: Flow, temperature: float) -> None:
    pixels = FlowDistribution(flow, temperature).expand((2,)).dequantized()
    assert pixels.batch_shape == (2,) and pixels.event_shape == flow.shape and pixels.has_rsample
    images, constant = some_images(flow, 2), flow.dimensions * math.log(flow.levels)
    x = flow.dequantize(images)
    z, log_det = flow.net(flow.pixels(x)[0])
    expected = Normal(0, temperature).log_prob(z).flatten(1).sum(1) + log_det + flow.pixels(x)[1]
    torch.testing.assert_close(pixels.log_prob(x), expected)
    score = FlowDistribution(flow, temperature).log_prob(images)
    torch.testing.assert_close(pixels.log_prob(x) - constant, score)
    sample = pixels.rsample((3,))
    assert sample.shape == (3, 2, *flow.shape) and sample.requires_grad
    assert bool(pixels.support.check(sample).all())
    assert torch.autograd.grad(sample.sum(), flow.net.layers()[0].bias1)[0].abs().max() > 0


def test_dequantized_works_in_float32_near_white() -> None:
    """λ = 1e-6: a white pixel after the logit is rounded in x, and that is no failure."""
    with torch.no_grad():
        x = FlowDistribution(trained_flow()).dequantized().sample((1,))
    assert x.shape == (1, 1, 28, 28) and bool(x.isfinite().all())


@pytest.mark.parametrize("validate", [True, False])
def test_values_that_are_no_images_raise(flow: Flow, validate: bool) -> None:
    images = FlowDistribution(flow, validate_args=validate)
    value = some_images(flow, 2).double()
    numbers = (value + 0.5, value - 9, value + flow.levels, value * math.nan, value.byte() + 9)
    for wrong in (*numbers, value[..., :3], value.flatten(1), "an image"):
        with pytest.raises(ValueError):
            images.log_prob(wrong)


def test_mistakes_are_named(flow: Flow, raises_with) -> None:
    solver = mintnet.FixedPoint(max_steps=1)
    for ask, kind, *words in (
        (lambda: FlowDistribution(flow.net), TypeError, "Flow", "MintNet", "BijectionTransform"),
        (lambda: FlowDistribution(flow, temperature=-1), ValueError, "temperature", -1),
        (lambda: FlowDistribution(flow, draws=0), ValueError, "draws=0"),
        (FlowDistribution(flow).rsample, NotImplementedError, "integers", "dequantized()"),
        (FlowDistribution(flow, solver=solver).sample, mintnet.InversionError),
    ):
        with raises_with(kind, *words):
            ask()
