"""The fast path computes what the plain path computes."""

import pytest
import torch
from torch import Tensor

from mintnet import Chain, MintLayer, MintNet, RealNVPCoupling, Squeeze
from mintnet.models import MintNetConfig
from mintnet.models.deep import DeepConfig, DeepNet
from mintnet.models.fast import fast_transform, fast_value, why_not_fast
from registry import away_from_zero

SHAPES = [
    MintNetConfig((1, 8, 8), pairs=(1, 1), filters=(5, 2)),
    MintNetConfig((3, 4, 6), pairs=(1, 1), filters=(7, 3)),
    MintNetConfig((2, 5, 5), pairs=(1,), filters=(4,), kernel_size=5),
    MintNetConfig((1, 4, 4), pairs=(1,), filters=(64,), t_form="absolute"),
    MintNetConfig((3, 8, 8), pairs=(1, 1, 1), filters=(5, 2, 1)),  # up to 48 channels
    MintNetConfig((3, 8, 8), pairs=(1, 1, 1), filters=(4, 2, 1), couplings=6),
]


@torch.no_grad()
def _net(config: MintNetConfig) -> MintNet:
    torch.manual_seed(0)
    net = MintNet(config)
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
def test_values_log_dets_and_gradients(config: MintNetConfig, dtype, tolerance: float) -> None:
    net = _net(config)
    x = torch.randn(3, *config.shape)
    plain = net.transform(x)
    fast = fast_transform(net, x, dtype, compiled=False)
    pairs = [*zip(plain, fast, strict=True), (_gradients(net, *plain), _gradients(net, *fast))]
    for expected, found in pairs:
        assert float(((found - expected).norm() / expected.norm()).detach()) < tolerance
        assert float((found - expected).abs().max().detach()) > 0 or dtype == torch.float32
    assert fast[1].dtype == torch.float32


def test_other_couplings_and_activations_are_refused() -> None:
    net = _net(SHAPES[-1])
    assert why_not_fast(net) == ""
    net.chain.parts[2] = RealNVPCoupling((12, 4, 4), "channel", hidden=3)
    assert "does not know this coupling" in why_not_fast(net)
    tanh = _net(MintNetConfig((3, 8, 8), pairs=(1,), filters=(2,), activation="tanh"))
    for other, words in ((net, "does not know"), (tanh, "elu alone")):
        with pytest.raises(ValueError, match=words):
            fast_transform(other, torch.randn(1, 3, 8, 8), torch.float32, compiled=False)


@pytest.mark.parametrize("activation", ["leaky_relu", "tanh", "elu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_alone_with_any_activation(activation: str, dtype: torch.dtype) -> None:
    """As classifiers use it: 8 channels, then 32 of them after a squeeze."""
    chain = Chain(
        MintLayer(8, 1, (4, 4), False, activation),
        Squeeze(2, (8, 4, 4)),
        MintLayer(32, 1, (2, 2), True, activation),
    )
    away_from_zero(chain)
    x = torch.randn(5, 8, 4, 4)
    found, expected = fast_value(chain, x, dtype, compiled=False), chain.value(x)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert float(((found - expected).norm() / expected.norm()).detach()) < tolerance


@pytest.mark.slow
def test_compiled_layers_compute_the_same() -> None:
    net, x = _net(SHAPES[0]), torch.randn(3, 1, 8, 8)
    plain, fast = net.transform(x), fast_transform(net, x, torch.float32, compiled=True)
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-4)
    gradients = _gradients(net, *fast), _gradients(net, *plain)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


def test_a_step_of_the_fast_path_can_be_captured(capturable) -> None:  # type: ignore[no-untyped-def]
    net, x = _net(SHAPES[-1]), torch.randn(3, 3, 8, 8)
    with capturable():
        z, log_det = fast_transform(net, x, torch.bfloat16, compiled=False)
        (z.square().sum() - log_det.sum()).backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize(("classes", "order"), [(0, "raster"), (0, "pixel"), (4, "pixel")])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
def test_mixture_layers(classes: int, order, dtype: torch.dtype, tolerance: float) -> None:
    net = DeepNet(DeepConfig((2, 4, 4), (2, 1), (4, 2), (2, 1), (3, 2), classes, order))
    away_from_zero(net)
    x = torch.randn(6, 2, 4, 4)
    given = net.given(torch.eye(4)[torch.arange(6) % 4]) if classes else net
    plain, fast = given.transform(x), fast_transform(given, x, dtype, compiled=False)
    pairs = [*zip(plain, fast, strict=True), (_gradients(net, *plain), _gradients(net, *fast))]
    for expected, found in pairs:
        assert float(((found - expected).norm() / expected.norm()).detach()) < tolerance
