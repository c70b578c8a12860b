"""Nats of each pixel: they sum to the likelihood, at the right places."""

from dataclasses import replace

import pytest
import torch

from mintnet.models import Flow, MintNetConfig
from registry import away_from_zero

CONFIG = MintNetConfig((1, 4, 4), pairs=(1, 1), filters=(3, 1))


@pytest.mark.parametrize("couplings", [0, 3])
def test_the_entries_sum_to_the_likelihood(couplings: int) -> None:
    flow = Flow(replace(CONFIG, couplings=couplings), 0.05, levels=17).double()
    away_from_zero(flow, 3, 1.2).eval()
    images = torch.randint(0, 17, (5, 1, 4, 4), dtype=torch.uint8)
    found = flow.log_prob_map(images, seed=2, draw=1)
    assert found.shape == images.shape
    torch.testing.assert_close(found.sum((1, 2, 3)), flow.log_prob(images, seed=2, draw=1))


def test_entries_are_those_of_their_pixels() -> None:
    """With layers that move nothing, each pixel has its own density after the logit."""
    flow = Flow(CONFIG, 0.05, levels=17).double().eval()
    with torch.no_grad():
        for layer in flow.net.layers():
            layer.weight3.zero_()
            layer.bias3.zero_()
    images = torch.randint(0, 17, (2, 1, 4, 4), dtype=torch.uint8)
    y, slopes = flow.logit.log_slopes(flow.dequantize(images))
    t = torch.stack([layer.t.log().mean() for layer in flow.net.layers()]).sum()
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(y * t.exp())
    expected = normal + slopes + t - torch.tensor(17.0).log()
    torch.testing.assert_close(flow.log_prob_map(images), expected.detach(), rtol=1e-6, atol=1e-6)
