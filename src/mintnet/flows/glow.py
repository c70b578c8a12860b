"""Glow: act norm, an invertible 1 × 1 convolution and a coupling."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet.bijections.base import AnalyticBijection, Bijection
from mintnet.bijections.chain import Chain
from mintnet.bijections.norm import ActNorm
from mintnet.flows.couplings import RealNVPCoupling
from mintnet.flows.emerging import EmergingFactor, emerging_convolution


class ChannelPermutation(AnalyticBijection):
    """Channels in another order: output channel i is input channel ``order[i]``.

    Examples:
        >>> swap = ChannelPermutation(torch.tensor([1, 0]), (2, 1, 1))
        >>> swap(torch.tensor([[[[3.0]], [[4.0]]]]))[0].flatten()
        tensor([4., 3.])
    """

    event_shape: tuple[int, ...]
    order: Tensor
    permutes = True

    def __init__(self, order: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__()
        if sorted(order.tolist()) != list(range(shape[0])):
            raise ValueError(
                f"expected each of the channels 0 to {shape[0] - 1} once; got {order.tolist()}"
            )
        self.event_shape = tuple(shape)
        self.register_buffer("order", order.clone())

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, self.order], x.new_zeros(len(x))

    def invert(self, z: Tensor) -> Tensor:
        return z[:, self.order.argsort()]


def invertible_1x1(
    channels: int, size: tuple[int, int], generator: torch.Generator | None = None
) -> Chain:
    r"""A dense C × C matrix at every pixel, as the chain P · L · U (Kingma and Dhariwal, 2018).

    U is triangular in the upper pixel order with diagonal ± exp(s), L in the lower one with
    diagonal 1, and P permutes channels; they start as the factors of a random rotation.
    Log-determinant: H · W · Σ s.

    Shapes: (batch, C, H, W) → (batch, C, H, W), (batch,).

    Examples:
        >>> mix = invertible_1x1(4, (2, 2))
        >>> bool(mix(torch.randn(3, 4, 2, 2))[1].abs().max() < 1e-5)   # a rotation to begin with
        True
    """
    noise = torch.randn(channels, channels, generator=generator, dtype=torch.float64)
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


def glow_step(
    channels: int,
    size: tuple[int, int],
    hidden: int = 64,
    mixing: str = "1x1",
    partition: str = "channel",
    scale: str = "sigmoid",
) -> Chain:
    """One step of Glow: act norm, mixing of the channels, an affine coupling.

    Args:
        channels: C, at least 2 for the partition "channel".
        size: (H, W).
        hidden: the width of the coupling's network.
        mixing: "1x1", or "emerging" for an emerging 3 × 3 convolution in its place.
        partition: of the coupling.
        scale: of the coupling, see `RealNVPCoupling`.

    Examples:
        >>> step = glow_step(4, (4, 4), hidden=8)
        >>> z, log_det = step(torch.randn(5, 4, 4, 4))
        >>> [type(part).__name__ for part in step.leaves()]
        ['ActNorm', 'EmergingFactor', 'EmergingFactor', 'ChannelPermutation', 'RealNVPCoupling']
    """
    kinds = {"1x1": invertible_1x1, "emerging": emerging_convolution}
    if mixing not in kinds:
        raise ValueError(f"unknown mixing {mixing!r}; choose one of {', '.join(kinds)}")
    mixed: Bijection = kinds[mixing](channels, size)  # type: ignore[operator]
    coupling = RealNVPCoupling((channels, *size), partition, hidden=hidden, scale=scale)
    return Chain(ActNorm(channels), mixed, coupling)
