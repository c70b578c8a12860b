"""The fast path computes what the plain path computes."""

import pytest
import torch
from torch import Tensor

from mintnet import MintNet
from mintnet.models import MintNetConfig
from mintnet.models.fast import fast_transform

SHAPES = [
    MintNetConfig((1, 8, 8), pairs=(1, 1), filters=(5, 2)),
    MintNetConfig((3, 4, 6), pairs=(1, 1), filters=(7, 3)),
    MintNetConfig((2, 5, 5), pairs=(1,), filters=(4,), kernel_size=5),
    MintNetConfig((1, 4, 4), pairs=(1,), filters=(64,), t_form="absolute"),
]


def _net(config: MintNetConfig) -> MintNet:
    torch.manual_seed(0)
    net = MintNet(config)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net


def _gradients(net: MintNet, z: Tensor, log_det: Tensor) -> Tensor:
    net.zero_grad()
    (z.square().sum() / 2 - log_det.sum()).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


@pytest.mark.parametrize("config", SHAPES, ids=lambda c: f"{c.shape}-{c.filters}")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=["f32", "bf16"]
)
def test_values_log_dets_and_gradients(
    config: MintNetConfig, dtype: torch.dtype, tolerance: float
) -> None:
    net = _net(config)
    x = torch.randn(3, *config.shape)
    plain = net.transform(x)
    fast = fast_transform(net, x, dtype, compiled=False)
    pairs = [*zip(plain, fast, strict=True), (_gradients(net, *plain), _gradients(net, *fast))]
    for expected, found in pairs:
        error = (found - expected).norm() / expected.norm()
        assert float(error.detach()) < tolerance
        assert float((found - expected).abs().max().detach()) > 0 or dtype == torch.float32
    assert fast[1].dtype == torch.float32
