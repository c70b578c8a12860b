"""Deep triangular layers: a mixture of logistics with parameters from a deep masked network."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.bijections.mixture_network import LEAST_LOG_SCALE, SLOW, MixtureNetwork
from mintnet.bijections.triangular import TriangularBijection
from mintnet.calculus import Convolution, Ordering, Quantity
from mintnet.calculus.interval import Interval
from mintnet.calculus.masks import check_positive
from mintnet.calculus.mixture import Mixture
from mintnet.calculus.monotone import Convolve, MonotoneMap
from mintnet.solvers import Evaluate

Q = TypeVar("Q", bound=Quantity)

T_FLOOR = 1e-3
"""The least t: it binds nothing in trained models and keeps every slope away from 0."""


class MixtureLayer(TriangularBijection):
    r"""y = t ⊙ x + logit F(x) with F a mixture of logistic distribution functions for each entry:

    .. code-block:: text

        F(xᵢ) = Σₖ πₖ σ(aₖ (xᵢ − ℓ) − mₖ),     (π, a, m, ℓ) from strictly earlier entries

    The parameters come from a network of masked 3 × 3 convolutions with gated residual blocks, as
    deep as one likes: an entry still depends on earlier levels 4c + 2r + q alone, so that depth
    does not lengthen the inverse. The slope lies in [t, t + max a] and logit F takes every real
    value, so the layer is onto for any finite weights.

    Args:
        channels: C.
        filters: K; the hidden width is C · K.
        size: (H, W).
        blocks: residual blocks of the network.
        components: of the mixture.
        upper: triangular from the other end.

    Shapes: (batch, C, H, W) → (batch, C, H, W), (batch,).

    Examples:
        >>> layer = MixtureLayer(channels=1, filters=4, size=(6, 6), blocks=1, components=3)
        >>> x = torch.randn(2, 1, 6, 6)
        >>> y, log_det = layer(x)
        >>> bool(torch.allclose(layer.inverse(y), x, atol=1e-4))
        True
        >>> layer.certify().onto
        True
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        size: tuple[int, int],
        blocks: int = 4,
        components: int = 8,
        upper: bool = False,
    ) -> None:
        super().__init__()
        check_positive(
            channels=channels, filters=filters, height=size[0], width=size[1], components=components
        )
        self.event_shape = (channels, *size)
        self.ordering = Ordering(upper)
        self.network = MixtureNetwork(channels, filters, blocks, components, upper)
        self.raw_t = nn.Parameter(
            torch.full((channels, 1, 1), math.log(math.expm1(0.01 - T_FLOOR)))
        )

    @property
    def t(self) -> Tensor:
        """The positive factor of x, (C, 1, 1)."""
        return T_FLOOR + F.softplus(self.raw_t)

    def function(self, x: Q) -> Q:
        return x.through_monotone(MixtureMap(self))

    def mixture(self, x: Tensor) -> Mixture:
        """The mixtures of all entries, given x."""
        prediction, t = self.network.prediction(x).flatten(2), self.t.flatten(1)
        return self.network.mixture(self.network(x), prediction, t)

    def evaluator(self) -> Evaluate:
        return self._value_and_slope

    def _value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = self.mixture(x).value_and_slope(x.flatten(2))
        return value.view_as(x), slope.view_as(x)

    def require_proof(self) -> None:
        """Nothing to ask: diag J ≥ t > 0 whatever the weights are."""

    def slope_floor(self) -> tuple[Tensor, Tensor]:
        """diag J ≥ t > 0."""
        t = self.t.expand(self.event_shape)
        return t, torch.ones_like(t)

    def start(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    @property
    def name(self) -> str:
        shape = "×".join(map(str, self.event_shape))
        order = "upper" if self.ordering.upper else "lower"
        return f"{order} MixtureLayer {shape}, {self.network.extra_repr()}"

    def extra_repr(self) -> str:
        return self.name


class MixtureMap(MonotoneMap):
    """The function of a mixture layer in the calculus."""

    def __init__(self, layer: MixtureLayer) -> None:
        self.layer, self.ordering = layer, layer.ordering

    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer._value_and_slope(x)

    def slope_range(self, shape: tuple[int, ...]) -> Interval:
        """[t, t + max a], with a ≤ e^9."""
        t = self.layer.t.detach().cpu().double().expand(1, *shape)
        return Interval.of(t, (t + math.exp(-LEAST_LOG_SCALE)).nextafter(torch.tensor(math.inf)))

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.layer.parameters())

    def convolutions(self) -> list[Convolution]:
        """Those of the network, then the linear prediction."""
        network, groups = self.layer.network, self.layer.event_shape[0]
        masked = [*network.convolutions, network.linear]
        return [Convolution(m.weight * m.mask, m.bias, groups, self.ordering) for m in masked]

    @property
    def reads_input(self) -> tuple[int, ...]:  # type: ignore[override]
        return 0, len(self.layer.network.convolutions)

    def constants(self) -> tuple[Tensor, ...]:
        """t alone."""
        return (self.layer.t,)

    def solve_level(
        self, convolve: Convolve, constants: tuple[Tensor, ...], target: Tensor, channels: slice
    ) -> Tensor:
        network = self.layer.network
        raw = network.features(convolve)
        prediction = SLOW * convolve(len(network.convolutions), None)[:, 0]
        t = constants[0][channels, 0]
        return network.mixture(raw, prediction, t).invert(target)

    def __str__(self) -> str:
        return "a mixture of logistics"
