"""Element-wise functions: each with its slope and the ranges of both."""

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.calculus.interval import INF, Interval, widened
from mintnet.calculus.quantity import Function, Q


class Elementwise(Function):
    """A strictly increasing function h applied to each entry.

    ``floor`` and ``ceiling`` are the infimum and supremum of h over all reals; at ``peaks``, h' may
    be extreme besides the ends of an interval. Subclasses give h and h' with relative accuracy also
    in their tails, where h' is tiny but not 0.
    """

    floor: float = -INF
    ceiling: float = INF
    peaks: tuple[float, ...] = ()

    def forward(self, x: Q) -> Q:
        return x.apply(self)

    @abstractmethod
    def value_and_slope(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """h(v) and h'(v)."""

    def value(self, v: Tensor) -> Tensor:
        return self.value_and_slope(v)[0]

    def value_range(self, v: Interval) -> Interval:
        """The image of an interval under h, which is monotone."""
        low = widened(self.value_and_slope(v.low)[0], -1, self.floor, self.ceiling)
        high = widened(self.value_and_slope(v.high)[0], +1, self.floor, self.ceiling)
        at_zero = float(self.value_and_slope(torch.zeros((), dtype=torch.float64))[0])
        positive, kept = self.floor == 0, at_zero == 0  # h(0) = 0 keeps strict signs
        sign = torch.full_like(v.sign, int(positive))
        return Interval.of(low, high, v.sign if kept and not positive else sign)

    def slope_range(self, v: Interval) -> Interval:
        """The range of h' over an interval; h' > 0 everywhere."""
        peaks = (torch.full_like(v.low, peak).clamp(v.low, v.high) for peak in self.peaks)
        slopes = [self.value_and_slope(at)[1] for at in (v.low, v.high, *peaks)]
        low, high = torch.stack(slopes).aminmax(dim=0)
        low = low.masked_fill(low.isinf(), float("nan"))  # nothing is known
        positive = low >= 0  # not so where a parameter of h breaks its promise
        least = widened(low, -1, -INF, INF).maximum(torch.where(positive, 0.0, -INF))
        return Interval.of(least, widened(high, +1, -INF, INF), positive.to(v.sign.dtype))

    def __str__(self) -> str:
        return f"the activation {type(self).__name__}"


class ELU(Elementwise):
    """v for v > 0, exp(v) − 1 otherwise; slope exp(min(v, 0))."""

    floor = -1.0

    def value_and_slope(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return F.elu(v), v.clamp(max=0).exp()

    def value(self, v: Tensor) -> Tensor:
        return F.elu(v)


class Tanh(Elementwise):
    """tanh(v); slope 4 σ(2v) σ(−2v), which does not cancel in the tails."""

    floor, ceiling = -1.0, 1.0
    peaks = (0.0,)

    def value_and_slope(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return v.tanh(), 4 * torch.sigmoid(2 * v) * torch.sigmoid(-2 * v)


class Sigmoid(Elementwise):
    """σ(v) = 1 / (1 + exp(−v)); slope σ(v) σ(−v)."""

    floor, ceiling = 0.0, 1.0
    peaks = (0.0,)

    def value_and_slope(self, v: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.sigmoid(v)
        return value, value * torch.sigmoid(-v)


class Softplus(Elementwise):
    """log(1 + exp(v)); slope σ(v)."""

    floor = 0.0

    def value_and_slope(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.logaddexp(v, torch.zeros_like(v)), torch.sigmoid(v)


class LeakyReLU(Elementwise):
    """v for v > 0, 0.01 v otherwise. At the kink the slope is the one from the left."""

    negative_slope = 0.01

    def value_and_slope(self, v: Tensor) -> tuple[Tensor, Tensor]:
        slope = torch.where(v > 0, torch.ones_like(v), self.negative_slope)
        return F.leaky_relu(v, self.negative_slope), slope


class Exp(Elementwise):
    """exp(v), its own slope: a positive factor for couplings and autoregressive layers."""

    floor = 0.0

    def value_and_slope(self, v: Tensor) -> tuple[Tensor, Tensor]:
        value = v.exp()
        return value, value


class Arctan(Elementwise):
    """arctan(v); slope 1 / (1 + v²), also where v² overflows."""

    floor, ceiling = -1.5707963267948968, 1.5707963267948968
    peaks = (0.0,)

    def value_and_slope(self, v: Tensor) -> tuple[Tensor, Tensor]:
        size = torch.hypot(v, torch.ones_like(v))
        return v.arctan(), 1 / size / size


ACTIVATIONS: dict[str, type[Elementwise]] = {"elu": ELU, "tanh": Tanh, "sigmoid": Sigmoid}
ACTIVATIONS |= {"softplus": Softplus, "leaky_relu": LeakyReLU}


def activation(name: str) -> Elementwise:
    """The activation of that name.

    Examples:
        >>> activation("relu")
        Traceback (most recent call last):
        ValueError: unknown activation 'relu'; choose one of elu, tanh, sigmoid, ...
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()
