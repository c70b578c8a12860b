"""Plain networks for the inside of couplings and of other layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mintnet.calculus.masks import check_positive


def check_shape(shape: tuple[int, ...]) -> None:
    """Raise unless it is the shape of a vector or an image."""
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise ValueError(
            f"expected the shape of a vector (D,) or an image (C, H, W); got {tuple(shape)}"
        )


class HalfNetwork(nn.Module):
    """s and t for one half of the channels, by a `plain_network` of the other half, and a log-gain.

    It reads and writes only the channels that count, where a coupling's own network reads zeros in
    one half and writes what is not used in the other. The gain, one number a channel, moves the
    middle of a bounded scale. With ``upper`` it reads the second half.

    Shapes: (batch, C, H, W) → (batch, 3 · C, H, W), 0 in the half that is read; C is even.
    """

    outputs = 3

    def __init__(self, shape: tuple[int, int, int], hidden: int, upper: bool = False) -> None:
        super().__init__()
        if shape[0] % 2:
            raise ValueError(f"two equal halves need an even number of channels; got {shape[0]}")
        self.channels, self.upper = shape[0] // 2, upper
        self.network = plain_network((self.channels, *shape[1:]), hidden, outputs=2)
        self.log_gain = nn.Parameter(torch.zeros(self.channels))

    def forward(self, x: Tensor) -> Tensor:
        read = x[:, self.channels :] if self.upper else x[:, : self.channels]
        found = self.network(read).unflatten(1, (2, self.channels))
        gain = self.log_gain[:, None, None].expand_as(found[:, :1])
        found = torch.cat([found, gain], 1)
        none = torch.zeros_like(found)
        return torch.cat([found, none] if self.upper else [none, found], 2).flatten(1, 2)


def plain_network(shape: tuple[int, ...], hidden: int, outputs: int) -> nn.Module:
    """Three layers with ELU, the last one 0, so that a fresh coupling is the identity.

    Convolutions of 3 × 3, 1 × 1 and 3 × 3 for images (C, H, W), dense layers for vectors (D,).
    """
    check_shape(shape)
    check_positive(hidden=hidden)
    # The last layer is made first: fresh weights then depend on the seed as they always have.
    last = layer(shape, hidden, outputs * shape[0])
    first, middle = layer(shape, shape[0], hidden), layer(shape, hidden, hidden, 1)
    set_to_zero(last)
    return nn.Sequential(first, nn.ELU(), middle, nn.ELU(), last)


def layer(shape: tuple[int, ...], into: int, out: int, kernel_size: int = 3) -> nn.Module:
    """A dense layer for vectors (D,), a convolution that keeps the size for images (C, H, W)."""
    if len(shape) == 1:
        return nn.Linear(into, out)
    return nn.Conv2d(into, out, kernel_size, padding=kernel_size // 2)


def set_to_zero(module: nn.Module) -> None:
    """Set all parameters to 0, so that a layer which ends with this module is the identity."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
