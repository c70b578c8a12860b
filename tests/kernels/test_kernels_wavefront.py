"""The wavefront kernel against its plain twin."""

from __future__ import annotations

import pytest
import torch

from mintnet import MintLayer, Wavefront
from mintnet.calculus.expression import trace
from mintnet.kernels.wavefront import wavefront_kernel
from mintnet.solvers.fused import groups_of, mint_weights

CASES = [
    # channels, filters, height, width, upper, kernel size, activation
    (2, 2, 2, 3, False, 3, "elu"),
    (1, 3, 3, 2, True, 5, "leaky_relu"),
    (17, 1, 1, 1, True, 3, "elu"),  # more channels than the least block of a matrix product
]


@pytest.mark.parametrize(
    ("channels", "filters", "height", "width", "upper", "size", "activation"), CASES
)
@torch.no_grad()
def test_kernel_agrees_with_the_plain_walk(
    device: torch.device,
    channels: int,
    filters: int,
    height: int,
    width: int,
    upper: bool,
    size: int,
    activation: str,
) -> None:
    torch.manual_seed(0)
    layer = MintLayer(channels, filters, (height, width), upper, activation, size)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    layer.to(device)
    x = torch.randn(2, channels, height, width, device=device)
    z = layer(x)[0]
    plain = layer.double().solve(z.double(), Wavefront()).value
    layer.float()
    weights = mint_weights(layer.system(), trace(layer.function), layer.event_shape)
    assert weights is not None
    groups = groups_of((channels, height, width), size // 2, upper, device)
    found, steps = wavefront_kernel(weights, groups, z, z.abs().flatten(1).amax(1))
    assert (found - plain).abs().max() < 1e-4 * plain.abs().max()
    assert (layer(found)[0] - z).abs().max() < 5e-6 * z.abs().max()
    assert (steps > 0).all() and (steps < 50).all()
    if filters == 2:  # the layout of z in memory does not matter
        mixed = z.to(memory_format=torch.channels_last)
        again, _ = wavefront_kernel(weights, groups, mixed, z.abs().flatten(1).amax(1))
        assert (again - found).abs().max() < 1e-6 * z.abs().max()


def test_only_mint_layers_are_recognised() -> None:
    from mintnet.bijections import Composed
    from mintnet.calculus import Identity, MaskedConv2d, Tanh

    layer = MintLayer(1, 2, (3, 3))
    assert mint_weights(layer.system(), trace(layer.function), (1, 3, 3)) is not None
    other = Composed(3.0 * Identity() + Tanh() @ MaskedConv2d(1), (1, 3, 3), insist=True)
    assert mint_weights(other.system(), trace(other.function), (1, 3, 3)) is None
    tanh = MintLayer(1, 2, (3, 3), activation="tanh")
    assert mint_weights(tanh.system(), trace(tanh.function), (1, 3, 3)) is None
