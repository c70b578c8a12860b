"""Mint layers with weights away from 0, and what a kernel makes of them with all gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mintnet import MintLayer
from mintnet.kernels.mint import Prepared, prepared_layers

Layer = Callable[..., tuple[Tensor, Tensor]]


def layer_of(
    channels: int, filters: int, height: int, width: int, upper: bool, size: int
) -> MintLayer:
    torch.manual_seed(0)
    layer = MintLayer(channels, filters, (height, width), upper, "elu", size)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def everything(
    function: Layer, layer: MintLayer, x: Tensor, dtype: torch.dtype, **options: object
) -> dict[str, Tensor]:
    """Values, log-determinants, and gradients of x and of each tensor of the weights."""
    x = x.detach().clone().requires_grad_()
    parts = prepared_layers([layer], dtype)[0]
    # detach keeps the layout in memory, which the kernels rely on
    weights = Prepared(*(part.detach().requires_grad_() for part in parts))
    y, log_det = function(
        x, weights, layer.filters, layer.kernel_size, layer.ordering.upper, **options
    )
    weight = torch.linspace(-1, 2, y.numel(), device=y.device).reshape(y.shape)
    wanted = torch.linspace(1, 2, len(log_det), device=y.device)
    ((weight + y) * y).sum().add((wanted * log_det).sum()).backward()
    gradients = {name: part.grad for name, part in weights._asdict().items()}
    return {"y": y.detach(), "log_det": log_det.detach(), "x": x.grad, **gradients}


def errors(expected: dict[str, Tensor], found: dict[str, Tensor]) -> dict[str, float]:
    """Of each, the norm of the difference over that of what is expected."""
    return {
        name: float((found[name].double() - value.double()).norm() / value.double().norm())
        for name, value in expected.items()
    }
