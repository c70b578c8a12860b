"""The MintNet: pairs of Mint layers with squeezes between the stages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mintnet.bijections import Bijection, Chain, MintLayer, Squeeze, paired_mint
from mintnet.calculus.masks import check_positive
from mintnet.flows import RealNVPCoupling
from mintnet.flows.networks import HalfNetwork
from mintnet.solvers import Solution, Solver


@dataclass(frozen=True)
class MintNetConfig:
    """The shape of a MintNet.

    Attributes:
        shape: (C, H, W) of one sample.
        pairs: pairs of Mint layers in each stage; a 2 × 2 squeeze stands between two stages.
        filters: K of each stage.
        activation: h.
        kernel_size: R.
        t_form: how t is kept positive, see `MintLayer`.
        couplings: the hidden width of an affine coupling (`RealNVPCoupling`) after each squeeze,
            not in the paper; 0 for none.
    """

    shape: tuple[int, int, int]
    pairs: tuple[int, ...]
    filters: tuple[int, ...]
    activation: str = "elu"
    kernel_size: int = 3
    t_form: str = "softplus"
    couplings: int = 0

    def __post_init__(self) -> None:
        for name in ("shape", "pairs", "filters"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.pairs) != len(self.filters) or not self.pairs:
            raise ValueError(
                "pairs and filters need one entry for each stage; got "
                f"{len(self.pairs)} and {len(self.filters)}"
            )
        for k in self.filters:
            check_positive(filters=k)
        for count in self.pairs:
            check_positive(pairs=count)
        if type(self.couplings) is not int or self.couplings < 0:
            raise ValueError(
                f"couplings is a width, 1 or more, or 0 for none; got {self.couplings!r}"
            )
        if self.couplings and len(self.pairs) == 1:
            raise ValueError(
                "couplings stand after squeezes, and a network of one stage has none: take more "
                "stages, or no couplings"
            )

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data."""
        return asdict(self)


PRESETS: dict[str, MintNetConfig] = {
    "digits": MintNetConfig((1, 8, 8), pairs=(3, 3), filters=(16, 4)),
    "mnist": MintNetConfig((1, 28, 28), pairs=(6, 6, 8), filters=(45, 11, 2)),
    "cifar10": MintNetConfig((3, 32, 32), pairs=(7, 7, 7), filters=(85, 21, 5)),
    "imagenet32": MintNetConfig((3, 32, 32), pairs=(7, 7, 7), filters=(85, 21, 5)),
}


def _couplings(shape: tuple[int, int, int], hidden: int) -> list[Bijection]:
    """One half of the channels predicts the other, and the other way round; none for a width 0."""
    if not hidden:
        return []
    networks = ((upper, HalfNetwork(shape, hidden, upper)) for upper in (False, True))
    return [
        RealNVPCoupling(shape, "channel", upper, network, centred=True)
        for upper, network in networks
    ]


class MintNet(Bijection):
    r"""Pairs of lower and upper Mint layers, with squeezes that trade resolution for channels.

    Examples:
        >>> net = MintNet(MintNetConfig((1, 4, 4), pairs=(1, 1), filters=(8, 2)))
        >>> z, log_det = net(torch.randn(5, 1, 4, 4))
        >>> z.shape, log_det.shape
        (torch.Size([5, 4, 2, 2]), torch.Size([5]))
        >>> MintNet.preset("mnist").parameter_count()
        437200
    """

    def __init__(self, config: MintNetConfig) -> None:
        super().__init__()
        self.config = config
        c, h, w = config.shape
        parts: list[Bijection] = []
        for stage, (pairs, filters) in enumerate(zip(config.pairs, config.filters, strict=True)):
            if stage > 0:
                parts.append(Squeeze(2, (c, h, w)))
                c, h, w = 4 * c, h // 2, w // 2
                parts.extend(_couplings((c, h, w), config.couplings))
            parts.extend(
                paired_mint(
                    c, filters, (h, w), config.activation, config.kernel_size, config.t_form
                )
                for _ in range(pairs)
            )
        self.event_shape = config.shape
        self.chain = Chain(*parts)

    @staticmethod
    def preset(name: str) -> MintNet:
        """The network of the paper for a data set, with fresh weights.

        Args:
            name: digits, mnist, cifar10 or imagenet32.
        """
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
        return MintNet(PRESETS[name])

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        return self.chain.output_shape

    def layers(self) -> list[MintLayer]:
        """All Mint layers, in the order in which they are applied."""
        return [module for module in self.modules() if isinstance(module, MintLayer)]

    def parameter_count(self) -> int:
        """Weights that are not masked, biases and t; those of couplings too."""
        others = (part for part in self.chain.leaves() if not isinstance(part, MintLayer))
        return sum(layer.parameter_count() for layer in self.layers()) + sum(
            parameter.numel() for part in others for parameter in part.parameters()
        )

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.chain.transform(x)

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        return self.chain.find(z, solver)

    def differentiable_inverse(self, z: Tensor, solver: Solver | None = None) -> Tensor:
        return self.chain.differentiable_inverse(z, solver)
