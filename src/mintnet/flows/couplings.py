"""Layers that are affine in each entry's own coordinate; the couplings of NICE and Real NVP."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.bijections.triangular import Q, TriangularBijection
from mintnet.calculus import Exp, HalfConditioner, Ordering, Sigmoid, Softplus, Tanh
from mintnet.flows.networks import HalfNetwork, plain_network
from mintnet.solvers.base import no_slope_floor

SCALES: dict[str, Callable[[Any], Any]] = {
    "exp": lambda v: Exp()(v),
    "softplus": lambda v: Softplus()(v + math.log(math.e - 1)),
    "sigmoid": lambda v: Sigmoid()(v + 2.0),
    "bounded": lambda v: Exp()(2.0 * Tanh()(0.5 * v)),
    "raw": lambda v: v + 1.0,
}
"""σ, the scale from what a network gives: positive, but for ``raw``, which is there to be refused.

``bounded`` lies between e⁻² and e²; ``sigmoid`` is the scale of Glow.
"""


class AffineLayer(TriangularBijection):
    """y = σ(s(earlier entries)) ⊙ x + t(earlier entries).

    With a positive σ, whose name is ``scale``, it is onto whatever its weights are. A constructor
    calls `require_proof` while the weights are random: with weights of 0 much is true by accident.
    """

    def __init__(self, shape: tuple[int, ...], ordering: Ordering, scale: str | None) -> None:
        super().__init__()
        if scale not in (None, *SCALES):
            raise ValueError(f"unknown scale {scale!r}; choose one of {', '.join(SCALES)}")
        self.event_shape, self.ordering, self.scale_name = tuple(shape), ordering, scale

    def scale(self, v: Q) -> Q:
        return SCALES[self.scale_name or "exp"](v)  # type: ignore[no-any-return]

    def slope_floor(self) -> tuple[Tensor, Tensor]:
        return no_slope_floor()

    @property
    def name(self) -> str:
        shape = "×".join(map(str, self.event_shape))
        return f"{type(self).__name__} {shape} in the {self.ordering}"

    def extra_repr(self) -> str:
        return self.name if self.scale_name is None else f"{self.name}, scale {self.scale_name}"


class Coupling(AffineLayer):
    """A layer that moves one half of the entries by what a network makes of the other half."""

    def __init__(
        self,
        shape: tuple[int, ...],
        partition: str,
        upper: bool,
        network: nn.Module | None,
        hidden: int,
        outputs: int,
        scale: str | None = None,
    ) -> None:
        by_channel = partition == "channel"
        if (shape[0] if by_channel else torch.Size(shape[-2:]).numel()) < 2:
            raise ValueError(
                f"a coupling needs two halves; samples of shape {tuple(shape)} have only one "
                f"{'channel' if by_channel else 'place'}. Squeeze first, or take another partition."
            )
        network = network or plain_network(shape, hidden, outputs)
        conditioner = HalfConditioner(network, partition, upper, outputs)
        super().__init__(shape, conditioner.ordering, scale)
        self.conditioner = conditioner


class NICECoupling(Coupling):
    """y₁ = x₁, y₂ = x₂ + N(x₁) for any network N of one half (Dinh, Krueger and Bengio, 2014).

    In F with the first half ordered first: every slope is 1, so the volume is preserved.

    Args:
        partition: "checkerboard", or "channel" for the first half of the channels (or entries).
        upper: the second half moves the first.
        network: N; three layers of ``hidden`` channels if not given.

    Examples:
        >>> NICECoupling((4,), "channel").certify().message
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
        super().__init__(shape, partition, upper, network, hidden, outputs=1)
        self.require_proof()

    def function(self, x: Q) -> Q:
        (shift,) = x.conditioned(self.conditioner)
        return x + shift


class RealNVPCoupling(Coupling):
    """y₁ = x₁, y₂ = σ(s(x₁)) ⊙ x₂ + t(x₁) with σ > 0 (Dinh et al., 2017).

    With ``centred``, y₂ = σ(s(x₁)) ⊙ (x₂ + t(x₁)). In F with the first half ordered first: slopes
    are 1 and σ(s). Glow's coupling has ``partition="channel"`` and ``scale="sigmoid"``. Other
    arguments are those of `NICECoupling`.

    Args:
        network: gives s and t, twice as many channels as come in. A `HalfNetwork` gives a
            log-gain γ as well, and σ(s) becomes e^γ σ(s).
        scale: σ: exp, softplus, sigmoid, bounded; ``raw`` has no positive σ and is refused.

    Examples:
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
        super().__init__(shape, partition, upper, network, hidden, outputs, scale)
        self.centred = centred
        first = self.conditioner.first(self.event_shape).to(torch.get_default_dtype())
        self.register_buffer("first", first, persistent=False)
        self.require_proof()

    def function(self, x: Q) -> Q:
        raw, shift, *gain = x.conditioned(self.conditioner)
        scale = self.scale(raw) * Exp()(gain[0]) if gain else self.scale(raw)
        second = (x + shift) * scale if self.centred else x * scale + shift
        return self.first * x + (1 - self.first) * second  # type: ignore[no-any-return]
