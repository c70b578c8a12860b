"""The MintNet: pairs of Mint layers with squeezes between the stages."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from mintnet.bijections import Bijection, Chain, MintLayer, MixtureLayer, Squeeze, paired_mint
from mintnet.flows import RealNVPCoupling
from mintnet.flows.couplings import HalfNetwork
from mintnet.models.base import Config, Counts, Shape, Sizes, choose, parameter_count

Kernel = Annotated[int, (1, 101)]


@dataclass(frozen=True)
class MintNetConfig(Config):
    """Shape (C, H, W), pairs of Mint layers and K of each stage; squeezes stand between stages."""

    shape: Shape
    pairs: Counts
    filters: Sizes
    activation: str = "elu"
    kernel_size: Kernel = 3
    t_form: str = "softplus"
    couplings: Annotated[int, (0, 2**16)] = 0  # hidden width of those after squeezes, 0 for none

    def check_more(self) -> None:
        self.check_stages("pairs", "filters")
        if self.couplings and len(self.pairs) == 1:
            raise ValueError("couplings stand after squeezes: take more than one stage, or none")

    def least_weights(self) -> int:
        couplings = 2 * (len(self.pairs) - 1) * self.couplings**2
        return couplings + mint_weights(self.shape, self.pairs, self.filters, self.kernel_size)


def mint_weights(shape: Shape, pairs: Counts, filters: Sizes, kernel_size: int) -> int:
    """Weights of pairs of Mint layers, a lower bound: half of each second kernel, and t."""
    widths = (shape[0] * 4**stage * k for stage, k in enumerate(filters))
    each = (width**2 * (kernel_size**2 + 1) + 2 * math.prod(shape) for width in widths)
    return sum(count * weights for count, weights in zip(pairs, each, strict=True))


PRESETS: dict[str, MintNetConfig] = {
    "digits": MintNetConfig((1, 8, 8), pairs=(3, 3), filters=(16, 4)),
    "mnist": MintNetConfig((1, 28, 28), pairs=(6, 6, 8), filters=(45, 11, 2)),
    "cifar10": MintNetConfig((3, 32, 32), pairs=(7, 7, 7), filters=(85, 21, 5)),
    "imagenet32": MintNetConfig((3, 32, 32), pairs=(7, 7, 7), filters=(85, 21, 5)),
}


def in_stages(
    shape: Shape, count: int, layers: Callable[[int, Shape], Iterable[Bijection]]
) -> list[Bijection]:
    """``layers(stage, shape)`` of each stage, with a 2 × 2 squeeze between two stages."""
    parts = list(layers(0, shape))
    for stage in range(1, count):
        parts.append(Squeeze(2, shape))
        shape = 4 * shape[0], shape[1] // 2, shape[2] // 2
        parts.extend(layers(stage, shape))
    return parts


class Network(Chain):
    """A chain that is built from a configuration; files call its parts ``chain.parts``."""

    parameter_count = parameter_count

    def __init__(self, *parts: Bijection) -> None:
        Bijection.__init__(self)
        self.chain = Chain(*parts)
        self.event_shape, self._output_shape = self.chain.event_shape, self.chain.output_shape

    @property
    def parts(self) -> nn.ModuleList:  # type: ignore[override]
        return self.chain.parts

    def given(self, context: Tensor) -> Chain:
        """The network for samples with this context, (batch, classes); it shares its weights."""
        parts = self.leaves()
        return Chain(*(p.given(context) if isinstance(p, MixtureLayer) else p for p in parts))


class MintNet(Network):
    """Pairs of lower and upper Mint layers, with squeezes that trade resolution for channels.

    Examples:
        >>> import torch
        >>> net = MintNet(MintNetConfig((1, 4, 4), pairs=(1, 1), filters=(8, 2)))
        >>> z, log_det = net(torch.randn(5, 1, 4, 4))
        >>> z.shape, log_det.shape
        (torch.Size([5, 4, 2, 2]), torch.Size([5]))
    """

    def __init__(self, config: MintNetConfig) -> None:
        form = config.activation, config.kernel_size, config.t_form

        def layers(stage: int, shape: Shape) -> list[Bijection]:
            hidden = config.couplings if stage else 0
            couplings = [
                RealNVPCoupling(shape, "channel", up, HalfNetwork(shape, hidden, up), centred=True)
                for up in ((False, True) if hidden else ())
            ]
            pairs, size = range(config.pairs[stage]), (shape[0], config.filters[stage], shape[1:])
            return [*couplings, *(paired_mint(*size, *form) for _ in pairs)]

        super().__init__(*in_stages(config.shape, len(config.pairs), layers))
        self.config = config

    @staticmethod
    def preset(name: str) -> "MintNet":
        """The paper's network for digits, mnist, cifar10 or imagenet32, with fresh weights."""
        return MintNet(PRESETS[choose(name, PRESETS)])

    def layers(self) -> list[MintLayer]:
        return [module for module in self.modules() if isinstance(module, MintLayer)]
