"""Emerging convolutions: two masked convolutions in the pixel order, a lower and an upper one."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from mintnet.bijections.chain import Chain
from mintnet.bijections.triangular import TriangularBijection
from mintnet.calculus import Convolution, Ordering, Quantity, conv_mask
from mintnet.calculus.masks import check_positive
from mintnet.solvers import Evaluate
from mintnet.solvers.schedule import front_of

Q = TypeVar("Q", bound=Quantity)


class EmergingFactor(TriangularBijection):
    r"""One factor of an emerging convolution (Hoogeboom, van den Berg and Welling, 2019):

    .. code-block:: text

        y = W ⊛ x + b,    W masked in the pixel order,    diag W = ± exp(s)

    Output channel i sees all channels of earlier pixels in its kernel, and at its own pixel the
    channels up to i. log |det J| = H · W · Σ s. The inverse goes over 2(H − 1) + (W − 1) + 1 fronts
    of pixels for a 3 × 3 kernel (`mintnet.Wavefront`), and over one for 1 × 1, as in Glow.

    Args:
        channels: C.
        size: (H, W).
        kernel_size: R, odd.
        upper: see later pixels and channels.
        unit: a diagonal of 1, so that the volume is preserved.
        bias: add a constant to each channel.

    Shapes: (batch, C, H, W) → (batch, C, H, W), (batch,).

    Examples:
        >>> import mintnet
        >>> factor = EmergingFactor(3, (32, 32))
        >>> factor.fronts
        94
        >>> z = factor(torch.randn(2, 3, 32, 32))[0].detach()
        >>> factor.solve(z, mintnet.Wavefront()).steps.tolist()
        [94, 94]
    """

    event_shape: tuple[int, int, int]
    mask: Tensor
    sign: Tensor

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        kernel_size: int = 3,
        upper: bool = False,
        unit: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_positive(channels=channels, height=size[0], width=size[1])
        self.event_shape, self.kernel_size, self.unit = (channels, *size), kernel_size, unit
        self.ordering = Ordering(upper, "pixel")
        mask = conv_mask(channels, 1, 1, kernel_size, upper, "pixel", strict=True)
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("sign", torch.ones(channels))
        self.weight = nn.Parameter(torch.empty(mask.shape))
        self.log_scale = None if unit else nn.Parameter(torch.zeros(channels))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        # Near the identity, but not so near that the order does not matter.
        nn.init.normal_(self.weight, std=0.05 / math.sqrt(mask[0].numel()))

    @property
    def fronts(self) -> int:
        """How many sets of pixels are solved one after another."""
        return 1 + int(front_of(self.event_shape[1:], self.kernel_size // 2).max())

    @property
    def diagonal(self) -> Tensor:
        """The slopes, one for each channel, (C,)."""
        return self.sign if self.log_scale is None else self.sign * self.log_scale.exp()

    def linear_map(self) -> Convolution:
        """The convolution for the weights as they are."""
        radius = self.kernel_size // 2
        own = torch.zeros_like(self.weight)
        own[:, :, radius, radius] = torch.diag(self.diagonal)
        channels = self.event_shape[0]
        return Convolution(self.weight * self.mask + own, self.bias, channels, self.ordering)

    def function(self, x: Q) -> Q:
        return x.through(self.linear_map())

    def evaluator(self) -> Evaluate:
        linear, slope = self.linear_map(), self.diagonal[:, None, None]
        return lambda x: (linear(x), slope.expand_as(x))

    def start(self, z: Tensor) -> Tensor:
        return z / self.diagonal[:, None, None]

    def slope_floor(self) -> tuple[Tensor, Tensor]:
        slope = self.diagonal[:, None, None].expand(self.event_shape)
        return slope.abs(), slope.sign()

    def require_proof(self) -> None:
        """Nothing to ask: the slopes are ± exp(s) whatever the weights are."""

    @property
    def name(self) -> str:
        shape = "×".join(map(str, self.event_shape))
        return f"EmergingFactor {shape}, {self.kernel_size}×{self.kernel_size}, {self.ordering}"

    def extra_repr(self) -> str:
        return self.name


def emerging_convolution(
    channels: int, size: tuple[int, int], kernel_size: int = 3, bias: bool = True
) -> Chain:
    """A lower factor, then an upper one: together they see everything around a pixel.

    Examples:
        >>> [part.ordering.upper for part in emerging_convolution(2, (4, 4)).parts]
        [False, True]
    """
    return Chain(
        EmergingFactor(channels, size, kernel_size, upper=False, unit=True, bias=False),
        EmergingFactor(channels, size, kernel_size, upper=True, bias=bias),
    )
