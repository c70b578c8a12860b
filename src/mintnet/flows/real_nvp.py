"""Real NVP: affine couplings."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from mintnet.calculus import Exp, HalfConditioner, Quantity
from mintnet.flows.affine import AffineLayer
from mintnet.flows.networks import HalfNetwork, plain_network
from mintnet.flows.nice import check_halves

Q = TypeVar("Q", bound=Quantity)


class RealNVPCoupling(AffineLayer):
    r"""The second half scaled and moved by a function of the first (Dinh et al., 2017):

    .. code-block:: text

        y₁ = x₁,    y₂ = σ(s(x₁)) ⊙ x₂ + t(x₁)          σ > 0
                    y₂ = σ(s(x₁)) ⊙ (x₂ + t(x₁))        with ``centred``

    In F with the first half ordered first: affine in each entry's own coordinate, with slopes 1
    and σ(s). Glow's coupling is this one with ``partition="channel"`` and ``scale="sigmoid"``.
    Before a standard normal, a centred one says x₂ ~ N(−t(x₁), σ⁻²).

    Args:
        shape: of one sample, (C, H, W) or (D,).
        partition: "checkerboard", or "channel" for the first half of the channels (or entries).
        upper: the second half moves the first.
        network: gives s and t, twice as many channels as come in; three layers of ``hidden``
            channels if not given. A `HalfNetwork` gives a log-gain γ as well, and σ(s) becomes
            e^γ σ(s).
        hidden: the width of that network.
        scale: σ: exp, softplus, sigmoid, bounded; ``raw`` has no positive σ and is refused.
        insist: build it even if it is not proved.
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
        insist: bool = False,
        centred: bool = False,
    ) -> None:
        check_halves(shape, partition)
        inside = network or plain_network(shape, hidden, outputs=2)
        outputs = inside.outputs if isinstance(inside, HalfNetwork) else 2
        conditioner = HalfConditioner(inside, partition, upper, outputs)
        super().__init__(shape, conditioner.ordering, scale, insist)
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
