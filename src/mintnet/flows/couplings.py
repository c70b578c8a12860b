"""Layers that are affine in each entry's own coordinate; the couplings of NICE and Real NVP."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.bijections.triangular import Q, TriangularBijection
from mintnet.calculus import Exp, HalfConditioner, Ordering, Sigmoid, Softplus, Tanh
from mintnet.calculus.masks import check_positive

SCALES: dict[str, Callable[[Any], Any]] = {  # σ: positive, but for raw, which is to be refused
    "exp": lambda v: Exp()(v),
    "softplus": lambda v: Softplus()(v + math.log(math.e - 1)),
    "sigmoid": lambda v: Sigmoid()(v + 2.0),  # that of Glow
    "bounded": lambda v: Exp()(2.0 * Tanh()(0.5 * v)),
    "raw": lambda v: v + 1.0,
}


def check_shape(shape: tuple[int, ...]) -> None:
    """Raise unless it is the shape of a vector or an image."""
    if len(shape) not in (1, 3) or min(shape) < 1:
        what = "the shape of a vector (D,) or an image (C, H, W)"
        raise ValueError(f"expected {what}; got {tuple(shape)}")


class HalfNetwork(nn.Module):
    """s and t for one half of the channels, by a `plain_network` of the other half, and a log-gain.

    The gain, one number a channel, moves the middle of a bounded scale. With ``upper`` it reads the
    second half. Shapes: (batch, C, H, W) → (batch, 3 · C, H, W), 0 in the half that is read.
    """

    outputs = 3

    def __init__(self, shape: tuple[int, int, int], hidden: int, upper: bool = False) -> None:
        super().__init__()
        if shape[0] % 2:
            raise ValueError(f"two equal halves need an even number of channels; got {shape[0]}")
        self.channels, self.upper = shape[0] // 2, upper
        self.network = plain_network((self.channels, *shape[1:]), hidden, outputs=2)
        self.log_gain = nn.Parameter(torch.zeros(self.channels))

    def forward(self, x: Tensor) -> Tensor:
        read = x[:, self.channels :] if self.upper else x[:, : self.channels]
        found = self.network(read).unflatten(1, (2, self.channels))
        found = torch.cat([found, self.log_gain[:, None, None].expand_as(found[:, :1])], 1)
        none = torch.zeros_like(found)
        return torch.cat([found, none] if self.upper else [none, found], 2).flatten(1, 2)


def plain_network(shape: tuple[int, ...], hidden: int, outputs: int) -> nn.Module:
    """Layers of 3 × 3, 1 × 1, 3 × 3 with ELU, the last one 0: a fresh coupling is the identity."""
    check_shape(shape)
    check_positive(hidden=hidden)
    # The last layer is made first: fresh weights then depend on the seed as they always have.
    last = layer(shape, hidden, outputs * shape[0])
    first, middle = layer(shape, shape[0], hidden), layer(shape, hidden, hidden, 1)
    set_to_zero(last)
    return nn.Sequential(first, nn.ELU(), middle, nn.ELU(), last)


def layer(shape: tuple[int, ...], into: int, out: int, kernel_size: int = 3) -> nn.Module:
    """A dense layer for vectors (D,), a convolution that keeps the size for images (C, H, W)."""
    if len(shape) == 1:
        return nn.Linear(into, out)
    return nn.Conv2d(into, out, kernel_size, padding=kernel_size // 2)


def set_to_zero(module: nn.Module) -> None:
    """Set all parameters to 0."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)


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
        return torch.zeros(()), torch.ones(())  # increasing, and no more is known

    @property
    def name(self) -> str:
        shape = "×".join(map(str, self.event_shape))
        return f"{type(self).__name__} {shape} in the {self.ordering}"

    def extra_repr(self) -> str:
        return self.name if self.scale_name is None else f"{self.name}, scale {self.scale_name}"


class Coupling(AffineLayer):
    """A layer that moves one half of the entries by what a network makes of the other half."""

    def __init__(self, shape: tuple[int, ...], half: HalfConditioner, scale: str | None) -> None:
        by_channel = half.partition == "channel"
        if (shape[0] if by_channel else torch.Size(shape[-2:]).numel()) < 2:
            got = f"shape {tuple(shape)} has only one {'channel' if by_channel else 'place'}"
            remedy = "Squeeze first, or take another partition."
            raise ValueError(f"a coupling needs two halves; {got}. {remedy}")
        super().__init__(shape, half.ordering, scale)
        self.conditioner = half


class NICECoupling(Coupling):
    """y₁ = x₁, y₂ = x₂ + N(x₁) for any network N of one half (Dinh, Krueger and Bengio, 2014).

    In F with the first half ordered first: every slope is 1, so the volume is preserved. Halves are
    those of a "checkerboard", or by "channel" (or entry); with ``upper``, the second moves the
    first. N has three layers of ``hidden`` channels if not given.

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
        network = network or plain_network(shape, hidden, 1)
        super().__init__(shape, HalfConditioner(network, partition, upper, 1), None)
        self.require_proof()

    def function(self, x: Q) -> Q:
        (shift,) = x.conditioned(self.conditioner)
        return x + shift


class RealNVPCoupling(Coupling):
    """y₁ = x₁, y₂ = σ(s(x₁)) ⊙ x₂ + t(x₁) with σ > 0 (Dinh et al., 2017).

    With ``centred``, y₂ = σ(s(x₁)) ⊙ (x₂ + t(x₁)). In F with the first half ordered first: slopes
    are 1 and σ(s). Glow's coupling has ``partition="channel"`` and ``scale="sigmoid"``. Other
    arguments are those of `NICECoupling`; the network gives s and t, twice as many channels as come
    in. A `HalfNetwork` gives a log-gain γ as well, and σ(s) becomes e^γ σ(s).

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
        network = network or plain_network(shape, hidden, 2)
        outputs = network.outputs if isinstance(network, HalfNetwork) else 2
        super().__init__(shape, HalfConditioner(network, partition, upper, outputs), scale)
        self.centred = centred
        first = self.conditioner.first(self.event_shape).to(torch.get_default_dtype())
        self.register_buffer("first", first, persistent=False)
        self.require_proof()

    def function(self, x: Q) -> Q:
        raw, shift, *gain = x.conditioned(self.conditioner)
        scale = self.scale(raw) * Exp()(gain[0]) if gain else self.scale(raw)
        second = (x + shift) * scale if self.centred else x * scale + shift
        return self.first * x + (1 - self.first) * second  # type: ignore[no-any-return]
