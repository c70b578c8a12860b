"""Inside Pyro and zuko, where they are installed."""

import pytest
import torch
from torch.distributions import Independent, Normal

from mintnet import BijectionTransform, Flow, FlowDistribution, MintLayer, MintNet
from mintnet.models import MintNetConfig
from registry import away_from_zero


@pytest.fixture
def net() -> MintNet:
    return away_from_zero(MintNet(MintNetConfig((1, 4, 4), (1, 1), (3, 1))).double(), 5, 0.8).eval()


@pytest.fixture
def pyro():
    module = pytest.importorskip("pyro")
    module.clear_param_store()
    yield module
    module.clear_param_store()


def test_zuko_normalizing_flow(zuko, net: MintNet) -> None:
    """data to noise is the direction of zuko's transforms: no .inv."""
    base = Independent(Normal(torch.zeros(4, 2, 2, dtype=torch.float64), 1.0), 3)
    flow = zuko.distributions.NormalizingFlow(BijectionTransform(net), base)
    assert flow.event_shape == (1, 4, 4)
    x, log_p = flow.rsample_and_log_prob((5,))
    assert x.shape == (5, 1, 4, 4) and x.requires_grad
    z, log_det = net(x)
    expected = Normal(0.0, 1.0).log_prob(z).flatten(1).sum(1) + log_det
    torch.testing.assert_close(log_p, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(flow.log_prob(x), log_p, rtol=1e-8, atol=1e-8)


def test_pyro_svi_trains_a_flow(pyro) -> None:
    """noise to data is the direction of Pyro's transforms: .inv."""
    torch.manual_seed(0)
    transform = BijectionTransform(MintLayer(1, 4, (2, 2)), cache_size=1)
    data = 3 + 0.5 * torch.randn(64, 1, 2, 2)

    def model(x: torch.Tensor) -> None:
        pyro.module("flow", transform)
        base = pyro.distributions.Normal(torch.zeros(1, 2, 2), 1.0)
        flow = pyro.distributions.TransformedDistribution(base, [transform.inv])
        with pyro.plate("images", len(x)):
            pyro.sample("x", flow, obs=x)

    def guide(x: torch.Tensor) -> None:
        pass

    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), pyro.infer.Trace_ELBO())
    losses = [svi.step(data) for _ in range(30)]
    assert losses[-1] < losses[0] / 2  # the cache noticed that the weights moved
    assert any("bijection.weight1" in name for name in pyro.get_param_store())


def test_pyro_site_of_images(pyro) -> None:
    """A distribution of torch becomes one of Pyro's with its mixin."""

    from pyro.distributions.torch_distribution import TorchDistributionMixin

    class Images(FlowDistribution, TorchDistributionMixin):
        pass

    flow = Flow.preset("digits")
    with pyro.plate("images", 3):
        x = pyro.sample("x", Images(flow))
    assert x.shape == (3, 1, 8, 8) and x.dtype == torch.uint8

    def model() -> None:
        with pyro.plate("images", 3):
            pyro.sample("x", Images(flow), obs=x)

    total = pyro.poutine.trace(model).get_trace().log_prob_sum()
    torch.testing.assert_close(total, flow.log_prob(x).sum())
