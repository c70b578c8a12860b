"""The element-wise chain as kernels against its plain twin."""

from __future__ import annotations

import pytest
import torch
from kernel_layers import errors, everything, layer_of
from torch import Tensor
from torch.nn import functional as F

from mintnet.kernels.chain import activated, mint_layer_chain, with_slopes
from mintnet.kernels.mint import mint_layer
from mintnet.precision import true_float32

CASES = [
    # channels, filters, height, width, upper, kernel size
    (1, 5, 4, 3, False, 3),
    (1, 3, 3, 3, True, 5),
    (2, 3, 3, 3, False, 3),
    (3, 13, 2, 3, True, 3),  # 39 hidden channels are padded to 48, which is no power of 2
    (17, 1, 2, 2, True, 3),  # more channels than the first and last convolution are gathered for
]


@pytest.mark.parametrize(("channels", "filters", "height", "width", "upper", "size"), CASES)
def test_values_log_dets_and_gradients(
    device: torch.device,
    channels: int,
    filters: int,
    height: int,
    width: int,
    upper: bool,
    size: int,
) -> None:
    layer = layer_of(channels, filters, height, width, upper, size).to(device)
    x = torch.randn(2, channels, height, width, device=device)
    with true_float32():
        plain = everything(mint_layer, layer, x, torch.float32)
        chain = everything(mint_layer_chain, layer, x, torch.float32, compile=False)
    for name, error in errors(plain, chain).items():
        assert error < 1e-5, name


def test_in_bf16(device: torch.device) -> None:
    """One rounding from the values and gradients of float64; slopes are better than bf16."""
    torch.manual_seed(0)
    v, mixed, weights = (torch.randn(3, 70, 16, device=device).bfloat16() for _ in range(3))

    def run(first: Tensor, second: Tensor, plain: bool) -> list[Tensor]:
        first, second = first.detach().requires_grad_(), second.detach().requires_grad_()
        if plain:
            h1, d1 = F.elu(first), first.clamp(max=0).exp()
            h2 = h1
            slope = (d1 * second)[..., :15].unflatten(-1, (1, 15)).sum(-1)
        else:
            h1, d1 = activated(first)
            h2, slope = with_slopes(first, second, 1, 15)
        loss = ((h1 + d1.square() + h2) * weights).sum() + slope.square().sum()
        loss.backward()
        return [h1, d1, h2, slope, first.grad, second.grad]

    exact = run(v.double(), mixed.double(), True)
    found = run(v, mixed, False)
    assert found[3].dtype == torch.float32
    for name, a, b in zip(("h1", "d1", "h2", "slope", "g_v", "g_mixed"), exact, found, strict=True):
        error = float(((b.double() - a).norm() / a.norm()).detach())
        assert error < (1e-6 if name == "slope" else 5e-3), name
