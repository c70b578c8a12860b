"""Couplings: one half moved, and scaled, by a function of the other. NICE and Real NVP."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from mintnet.calculus import Exp, HalfConditioner, Quantity
from mintnet.flows.affine import AffineLayer
from mintnet.flows.networks import HalfNetwork, plain_network

Q = TypeVar("Q", bound=Quantity)


class NICECoupling(AffineLayer):
    r"""The second half moved by any function of the first (Dinh, Krueger and Bengio, 2014):

    .. code-block:: text

        y₁ = x₁,    y₂ = x₂ + N(x₁)

    In F with the first half ordered first: every slope is 1, so the volume is preserved.

    Args:
        shape: of one sample, (C, H, W) or (D,).
        partition: "checkerboard", or "channel" for the first half of the channels (or entries).
        upper: the second half moves the first.
        network: N; three layers of ``hidden`` channels if not given.
        hidden: the width of that network.

    Examples:
        >>> layer = NICECoupling((4,), "channel")
        >>> layer.certify().message
        'onto: every slope lies in [1, 1]'
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        partition: str = "checkerboard",
        upper: bool = False,
        network: nn.Module | None = None,
        hidden: int = 64,
    ) -> None:
        conditioner = _conditioner(shape, partition, upper, network, hidden, outputs=1)
        super().__init__(shape, conditioner.ordering, None)
        self.conditioner = conditioner
        self.prove()

    def function(self, x: Q) -> Q:
        (shift,) = x.conditioned(self.conditioner)
        return x + shift


class RealNVPCoupling(AffineLayer):
    r"""The second half scaled and moved by a function of the first (Dinh et al., 2017):

    .. code-block:: text

        y₁ = x₁,    y₂ = σ(s(x₁)) ⊙ x₂ + t(x₁)          σ > 0
                    y₂ = σ(s(x₁)) ⊙ (x₂ + t(x₁))        with ``centred``

    In F with the first half ordered first: affine in each entry's own coordinate, with slopes 1
    and σ(s). Glow's coupling is this one with ``partition="channel"`` and ``scale="sigmoid"``.
    Before a standard normal, a centred one says x₂ ~ N(−t(x₁), σ⁻²).

    Args:
        shape: of one sample; it, ``partition``, ``upper`` and ``hidden`` are as for `NICECoupling`.
        network: gives s and t, twice as many channels as come in. A `HalfNetwork` gives a
            log-gain γ as well, and σ(s) becomes e^γ σ(s).
        scale: σ: exp, softplus, sigmoid, bounded; ``raw`` has no positive σ and is refused.
        centred: move first, then scale.

    Examples:
        >>> layer = RealNVPCoupling((4,), "channel")
        >>> layer.certify().onto
        True
        >>> RealNVPCoupling((4,), "channel", scale="raw")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mintnet.calculus.proof.NotProvedError: RealNVPCoupling ... is not proved ...
    """

    first: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        partition: str = "checkerboard",
        upper: bool = False,
        network: nn.Module | None = None,
        hidden: int = 64,
        scale: str = "bounded",
        centred: bool = False,
    ) -> None:
        outputs = network.outputs if isinstance(network, HalfNetwork) else 2
        conditioner = _conditioner(shape, partition, upper, network, hidden, outputs)
        super().__init__(shape, conditioner.ordering, scale)
        self.centred = centred
        self.conditioner = conditioner
        first = conditioner.first(self.event_shape).to(torch.get_default_dtype())
        self.register_buffer("first", first, persistent=False)
        self.prove()

    def function(self, x: Q) -> Q:
        raw, shift, *gain = x.conditioned(self.conditioner)
        scale = self.scale(raw)
        if gain:
            scale = scale * Exp()(gain[0])
        second = (x + shift) * scale if self.centred else x * scale + shift
        return self.first * x + (1 - self.first) * second


def _conditioner(
    shape: tuple[int, ...],
    partition: str,
    upper: bool,
    network: nn.Module | None,
    hidden: int,
    outputs: int,
) -> HalfConditioner:
    """The network as a function of one half; raises if a half would be empty."""
    entries = shape[0] if partition == "channel" else torch.Size(shape[-2:]).numel()
    if entries < 2:
        raise ValueError(
            f"a coupling needs two halves; samples of shape {tuple(shape)} have only one "
            f"{'channel' if partition == 'channel' else 'place'}. Squeeze first, or take another "
            "partition."
        )
    network = network or plain_network(shape, hidden, outputs)
    return HalfConditioner(network, partition, upper, outputs)
