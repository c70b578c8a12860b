"""One network of each family: exact where it says so, and inverted."""

import pytest
import torch

from mintnet import MintLayer
from mintnet.cli import bench
from mintnet.models.base import parameter_count
from registry import away_from_zero, jacobian

networks = bench.benchmarks("networks")
FAMILIES, family_net = networks.FAMILIES, networks.family_net


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_what_it_says(name: str) -> None:
    torch.manual_seed(0)
    net = away_from_zero(family_net(name, (1, 8, 8), depth=1, width=8), 1, 0.7).double().eval()
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        z, log_det = net(x)
        solution = net.solve(z)
    assert bool(solution.converged.all()), solution.message
    torch.testing.assert_close(solution.value, x, rtol=1e-7, atol=1e-7)
    expected = torch.linalg.slogdet(jacobian(lambda x: net(x)[0], x))[1].detach()
    error = float((log_det - expected).abs().max())
    assert (error < 1e-8) is FAMILIES[name].exact, error


def test_parameters_leave_masked_weights_out() -> None:
    layer = MintLayer(3, 4, (5, 5))
    assert parameter_count(layer) == layer.parameter_count()
    assert parameter_count(torch.nn.Linear(3, 2)) == 8
