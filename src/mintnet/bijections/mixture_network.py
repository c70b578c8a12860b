"""The network of a mixture layer: masked convolutions of strictly earlier entries, any depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.calculus import conv_mask
from mintnet.calculus.mixture import Mixture
from mintnet.calculus.monotone import Convolve

LEAST_LOG_SCALE = -9.0
"""Components may be much narrower than a grey level, which is 2 / 256 of pixels in [−1, 1]."""
SLOW = 0.05
"""The linear prediction moves slowly: its weights are multiplied by this."""
EPS = 1e-4


class MixtureNetwork(nn.Module):
    r"""Parameters of a mixture for each entry, from strictly earlier entries.

    The first convolution is strict, all others may see their own entry. Between them: RMS
    normalization over the K features of each channel and pixel, SiLU, and gated residual blocks

    .. code-block:: text

        n = h / rms(h),   (u, g) = W² ⊛ silu(W¹ ⊛ n),   h ← h + u · σ(g)

    Beside the network there is a linear prediction ℓ of each entry from its strict neighbours.

    Args:
        channels: C.
        filters: K.
        blocks: residual blocks.
        components: M of the mixture.
        upper: triangular from the other end.
    """

    def __init__(
        self, channels: int, filters: int, blocks: int, components: int, upper: bool
    ) -> None:
        super().__init__()
        self.channels, self.filters, self.blocks = channels, filters, blocks
        self.components, self.upper = components, upper
        convolutions = [MaskedConvolution(channels, filters, 1, 3, upper, strict=True)]
        for _ in range(blocks):
            convolutions.append(MaskedConvolution(channels, filters, filters, 3, upper))
            convolutions.append(MaskedConvolution(channels, 2 * filters, filters, 3, upper, 0.1))
        convolutions.append(MaskedConvolution(channels, 3 * components, filters, 1, upper, 0.02))
        self.convolutions = nn.ModuleList(convolutions)
        self.linear = MaskedConvolution(channels, 1, 1, 3, upper, 0.0, strict=True)
        with torch.no_grad():  # components spread over some units of their own scale
            bias = convolutions[-1].bias.view(channels, 3, components)
            bias[:, 1] = 0.05 * torch.linspace(-1, 1, components)

    def forward(self, x: Tensor) -> Tensor:
        """Raw parameters. Shapes: (batch, C, H, W) → (batch, C, 3·M, H·W)."""
        batch, _, height, width = x.shape

        def convolve(index: int, u: Tensor | None) -> Tensor:
            u = x if u is None else u.reshape(batch, -1, height, width)
            y = self.convolutions[index](u)
            return y.reshape(batch, self.channels, -1, height * width)  # type: ignore[no-any-return]

        return self.features(convolve)

    def features(self, convolve: Convolve) -> Tensor:
        """The network, on whole images or on one level of them.

        Features have the K copies of a channel on the last axis but one; what else there is, the
        caller's ``convolve`` decides.
        """
        h = convolve(0, None)
        for block in range(self.blocks):
            inside = F.silu(convolve(2 * block + 1, normalized(h)))
            update, gate = convolve(2 * block + 2, inside).chunk(2, -2)
            h = h + update * torch.sigmoid(gate)
        return convolve(2 * self.blocks + 1, F.silu(normalized(h)))

    def prediction(self, x: Tensor) -> Tensor:
        """ℓ, of the shape of x."""
        prediction: Tensor = SLOW * self.linear(x)
        return prediction

    def mixture(self, raw: Tensor, prediction: Tensor, t: Tensor) -> Mixture:
        """Raw parameters (..., 3·M, n), ℓ (..., n) and t as mixtures of (..., n) entries."""
        weight, offset, log_scale = raw.unflatten(-2, (3, self.components)).unbind(-3)
        return Mixture(
            weight.mT.log_softmax(-1),
            -log_scale.mT.clamp(min=LEAST_LOG_SCALE),
            offset.mT,
            prediction,
            t,
        )

    def extra_repr(self) -> str:
        return f"K = {self.filters}, {self.blocks} blocks, {self.components} components"


class MaskedConvolution(nn.Module):
    """A masked convolution with several copies of each channel on both sides."""

    mask: Tensor

    def __init__(
        self,
        channels: int,
        copies_out: int,
        copies_in: int,
        kernel_size: int,
        upper: bool,
        gain: float = 1.0,
        strict: bool = False,
    ) -> None:
        super().__init__()
        mask = conv_mask(channels, copies_out, copies_in, kernel_size, upper, strict=strict)
        self.register_buffer("mask", mask, persistent=False)
        fan_in = mask.flatten(1).sum(1).clamp(min=1).view(-1, 1, 1, 1)
        self.weight = nn.Parameter(gain * torch.randn(mask.shape) * mask / fan_in.sqrt())
        self.bias = nn.Parameter(torch.zeros(len(mask)))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.mask.shape[-1] // 2)


def normalized(h: Tensor) -> Tensor:
    """h over its root mean square among the copies of each channel and pixel."""
    return h * torch.rsqrt(h.square().mean(-2, keepdim=True) + EPS)
