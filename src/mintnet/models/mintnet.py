"""The MintNet: pairs of Mint layers with squeezes between the stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from mintnet.bijections import Bijection, Chain, MintLayer, Squeeze, paired_mint
from mintnet.flows import RealNVPCoupling
from mintnet.flows.networks import HalfNetwork
from mintnet.models.base import Config, Shape, choose, parameter_count
from mintnet.solvers import Solution, Solver


@dataclass(frozen=True)
class MintNetConfig(Config):
    """Shape (C, H, W), pairs of Mint layers and K of each stage; squeezes stand between stages.

    ``couplings`` is the hidden width of an affine coupling after each squeeze, or 0 for none.
    """

    shape: Shape
    pairs: tuple[int, ...]
    filters: tuple[int, ...]
    activation: str = "elu"
    kernel_size: int = 3
    t_form: str = "softplus"
    couplings: int = 0

    def __post_init__(self) -> None:
        self.make_tuples("shape")
        self.check_stages("pairs", "filters")
        if type(width := self.couplings) is not int or width < 0:
            raise ValueError(f"couplings is a width, 1 or more, or 0 for none; got {width!r}")
        if self.couplings and len(self.pairs) == 1:
            raise ValueError(
                "couplings stand after squeezes, and a network of one stage has none: take more "
                "stages, or no couplings"
            )


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


class Network(Bijection):
    """A bijection that is a chain built from a configuration."""

    chain: Chain

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        return self.chain.output_shape

    def leaves(self) -> list[Bijection]:
        return self.chain.leaves()

    def parameter_count(self) -> int:
        """Weights that are not masked, and all other parameters."""
        return parameter_count(self)

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.chain.transform(x)

    def value(self, x: Tensor) -> Tensor:
        return self.chain.value(x)

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        return self.chain.find(z, solver)

    def attach(self, x: Tensor, z: Tensor) -> Tensor:
        return self.chain.attach(x, z)

    def tolerance_of(self, dtype: torch.dtype, solver: Solver | None) -> float:
        return self.chain.tolerance_of(dtype, solver)


class MintNet(Network):
    """Pairs of lower and upper Mint layers, with squeezes that trade resolution for channels.

    Examples:
        >>> net = MintNet(MintNetConfig((1, 4, 4), pairs=(1, 1), filters=(8, 2)))
        >>> z, log_det = net(torch.randn(5, 1, 4, 4))
        >>> z.shape, log_det.shape
        (torch.Size([5, 4, 2, 2]), torch.Size([5]))
    """

    def __init__(self, config: MintNetConfig) -> None:
        super().__init__()
        self.config = config
        form = config.activation, config.kernel_size, config.t_form

        def layers(stage: int, shape: Shape) -> list[Bijection]:
            hidden = config.couplings if stage else 0
            couplings = [
                RealNVPCoupling(shape, "channel", up, HalfNetwork(shape, hidden, up), centred=True)
                for up in ((False, True) if hidden else ())
            ]
            pairs, size = range(config.pairs[stage]), (shape[0], config.filters[stage], shape[1:])
            return [*couplings, *(paired_mint(*size, *form) for _ in pairs)]

        self.event_shape = config.shape
        self.chain = Chain(*in_stages(config.shape, len(config.pairs), layers))

    @staticmethod
    def preset(name: str) -> MintNet:
        """The paper's network for digits, mnist, cifar10 or imagenet32, with fresh weights."""
        return MintNet(PRESETS[choose(name, PRESETS)])

    def layers(self) -> list[MintLayer]:
        """All Mint layers, in the order in which they are applied."""
        return [module for module in self.modules() if isinstance(module, MintLayer)]
