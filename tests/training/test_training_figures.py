"""Bits per dimension: against closed forms, and the same however they are computed."""

import math

import pytest
import torch
from torch import distributions as D

from mintnet.data import ImageData, load
from mintnet.models import Flow, MintNetConfig
from mintnet.models.noise import uniform_noise
from mintnet.models.storage import read_config
from mintnet.training import RunError, evaluate
from mintnet.training.data import images_for


def affine_flow(shape, t=1.0, bias=0.0, lam=0.05, levels=17):
    """A flow whose network is y ↦ t y + bias: every weight 0, one lower and one upper layer."""
    flow = Flow(MintNetConfig(shape, (1,), (2,), t_form="absolute"), lam, levels).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.zero_()
        first, second = flow.net.layers()
        first.raw_t.fill_(t)
        first.bias3.fill_(bias)
        second.raw_t.fill_(1.0)
    return flow


def bits_by_distributions(images, t, bias, lam, levels, seed, draw):
    """The same density put together by torch.distributions."""
    gaussian = D.Normal(torch.tensor(-bias / t, dtype=torch.float64), 1 / t)
    squash = [D.SigmoidTransform(), D.AffineTransform(-lam / (1 - 2 * lam), 1 / (1 - 2 * lam))]
    pixels = D.TransformedDistribution(gaussian, squash, validate_args=False)
    index = torch.arange(len(images))
    noise = uniform_noise(seed, draw, index, tuple(images.shape[1:]), torch.float64)
    nats = pixels.log_prob((images + noise) / levels) - math.log(levels)
    return -nats.flatten(1).mean(1) / math.log(2)


@pytest.mark.parametrize(("t", "bias"), [(1.0, 0.0), (0.5, 0.75), (2.0, -1.5)])
@pytest.mark.parametrize(("lam", "levels"), [(0.05, 17), (1e-6, 256), (0.2, 2)])
def test_bits_per_dim_of_a_known_density(t, bias, lam, levels):
    images = torch.randint(0, levels, (6, 3, 4, 4)).byte()
    flow = affine_flow((3, 4, 4), t, bias, lam, levels)
    expected = bits_by_distributions(images, t, bias, lam, levels, seed=3, draw=2)
    torch.testing.assert_close(flow.bits_per_dim(images, seed=3, draw=2), expected)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_evaluation_is_bits_per_dim_whatever_the_batch(batch_size):
    torch.manual_seed(1)
    flow = Flow(MintNetConfig((1, 8, 8), (1, 1), (3, 2)), 0.05, 17)
    data = load("digits", "test")
    data = ImageData("digits", data.images[:50], levels=17)
    bits = torch.stack([flow.bits_per_dim(data.images, 4, k).detach() for k in range(3)])
    bits = bits.double().mean(0)
    result = evaluate(flow, data, draws=3, seed=4, batch_size=batch_size)
    assert result.bits_per_dim == pytest.approx(float(bits.mean()), abs=1e-6)
    assert result.standard_error == pytest.approx(float(bits.std()) / math.sqrt(50), rel=1e-4)
    assert result.nats == pytest.approx(float(bits.mean()) * 64 * math.log(2), rel=1e-5)


def test_a_model_that_does_not_say_what_it_is_for(tmp_path):
    Flow.preset("digits").save(tmp_path)
    with pytest.raises(RunError, match="which data set"):
        images_for(read_config(tmp_path), "model")
    assert len(images_for(read_config(tmp_path), "model", name="digits")) == 360
