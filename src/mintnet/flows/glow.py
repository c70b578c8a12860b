"""Emerging convolutions and Glow: channels mixed by triangular factors, and a step of Glow."""

import math

import torch
from torch import Tensor, nn

from mintnet.bijections.chain import Chain
from mintnet.bijections.norm import ActNorm
from mintnet.bijections.permutations import ChannelPermutation
from mintnet.bijections.triangular import Q, TriangularBijection
from mintnet.calculus import Convolution, Ordering, conv_mask
from mintnet.calculus.masks import check_positive
from mintnet.flows.couplings import RealNVPCoupling
from mintnet.solvers import Evaluate


class EmergingFactor(TriangularBijection):
    """y = W ⊛ x + b, W masked in the pixel order with diagonal ± exp(s) (Hoogeboom et al., 2019).

    Output channel i sees all channels of earlier pixels in its kernel, and at its own pixel the
    channels up to i; with ``upper``, later ones. ``size`` is (H, W), log |det J| = H · W · Σ s, and
    with ``unit`` the diagonal is 1. The inverse goes over 2(H − 1) + (W − 1) + 1 fronts of pixels
    for a 3 × 3 kernel (`mintnet.Wavefront`), and over one for 1 × 1, as in Glow.

    Examples:
        >>> EmergingFactor(3, (32, 32)).certify().onto
        True
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
        self.event_shape, self.kernel_size = (channels, *size), kernel_size
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
    def diagonal(self) -> Tensor:
        """The slopes, one for each channel, (C,)."""
        return self.sign if self.log_scale is None else self.sign * self.log_scale.exp()

    def linear_map(self) -> Convolution:
        radius, own = self.kernel_size // 2, torch.zeros_like(self.weight)
        own[:, :, radius, radius] = torch.diag(self.diagonal)
        weight = self.weight * self.mask + own
        return Convolution(weight, self.bias, self.event_shape[0], self.ordering)

    def function(self, x: Q) -> Q:
        return x.through(self.linear_map())

    def evaluator(self) -> Evaluate:
        linear, slope = self.linear_map(), self.diagonal[:, None, None]
        return lambda x: (linear(x), slope.expand_as(x))

    def extra_repr(self) -> str:
        return f"{self.event_shape}, kernel_size={self.kernel_size}, {self.ordering}"


def emerging_convolution(channels: int, size: tuple[int, int], kernel_size: int = 3) -> Chain:
    """A lower factor, then an upper one: together they see everything around a pixel."""
    lower = EmergingFactor(channels, size, kernel_size, unit=True, bias=False)
    return Chain(lower, EmergingFactor(channels, size, kernel_size, upper=True))


def invertible_1x1(channels: int, size: tuple[int, int]) -> Chain:
    """A dense C × C matrix at every pixel, as the chain P · L · U (Kingma and Dhariwal, 2018).

    The diagonal of U is ± exp(s), that of L is 1, and P permutes channels; they start as the
    factors of a random rotation. Log-determinant: H · W · Σ s.
    """
    noise = torch.randn(channels, channels, dtype=torch.float64)
    p, l, u = torch.linalg.lu(torch.linalg.qr(noise).Q)
    upper = EmergingFactor(channels, size, 1, upper=True, bias=False)
    lower = EmergingFactor(channels, size, 1, unit=True, bias=False)
    assert upper.log_scale is not None
    with torch.no_grad():
        upper.weight.copy_(u[:, :, None, None])
        lower.weight.copy_(l[:, :, None, None])
        upper.log_scale.copy_(u.diagonal().abs().log())
        upper.sign.copy_(u.diagonal().sign())
    return Chain(upper, lower, ChannelPermutation(p.argmax(1), (channels, *size)))


def glow_step(channels: int, size: tuple[int, int], hidden: int = 64, mixing: str = "1x1") -> Chain:
    """One step of Glow: act norm, mixing of the channels, an affine coupling.

    ``mixing`` is "1x1", or "emerging" for an emerging 3 × 3 convolution in its place.

    Examples:
        >>> [type(part).__name__ for part in glow_step(4, (4, 4), hidden=8).leaves()]
        ['ActNorm', 'EmergingFactor', 'EmergingFactor', 'ChannelPermutation', 'RealNVPCoupling']
    """
    kinds = {"1x1": invertible_1x1, "emerging": emerging_convolution}
    if mixing not in kinds:
        raise ValueError(f"unknown mixing {mixing!r}; choose one of {', '.join(kinds)}")
    mixed = kinds[mixing](channels, size)
    coupling = RealNVPCoupling((channels, *size), "channel", hidden=hidden, scale="sigmoid")
    return Chain(ActNorm(channels), mixed, coupling)
