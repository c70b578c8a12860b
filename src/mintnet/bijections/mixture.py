"""Deep triangular layers: a mixture of logistics with parameters from a deep masked network."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.bijections.mixture_network import (
    LEAST_LOG_SCALE,
    SLOW,
    Convolve,
    Mixture,
    MixtureNetwork,
    with_steps,
)
from mintnet.bijections.triangular import Q, TriangularBijection
from mintnet.calculus import Convolution, Dense, LinearMap, Ordering
from mintnet.calculus.conditioner import MonotoneMap
from mintnet.calculus.interval import Interval
from mintnet.calculus.masks import check_positive, check_size
from mintnet.solvers import Evaluate, System
from mintnet.solvers.levels import LevelMap, LevelWalk

T_FLOOR = 1e-3  # the least t: it binds nothing in trained models and keeps slopes away from 0


class MixtureLayer(TriangularBijection):
    r"""y = t ⊙ x + logit F(x) with F a mixture of logistic distribution functions for each entry:

        F(xᵢ) = Σₖ πₖ σ(aₖ (xᵢ − ℓ) − mₖ),     (π, a, m, ℓ) from strictly earlier entries

    The parameters come from a network of masked 3 × 3 convolutions with gated residual blocks, as
    deep as one likes: an entry still depends on earlier levels 4c + 2r + q alone, so that depth
    does not lengthen the inverse. The slope lies in [t, t + max a] and logit F takes every real
    value, so the layer is onto for any finite weights.

    Args:
        channels: C.
        filters: K; the hidden width is C · K.
        size: (H, W), or () for vectors of C entries, whose network has masked matrices.
        blocks: residual blocks of the network.
        components: of the mixture.
        upper: triangular from the other end.
        context: features of each sample that the network sees as well, 0 for none; a layer with
            context is used as ``layer.given(context)``.

    Shapes: x and y (batch, C, H, W), of vectors (batch, C); log-determinant (batch,).

    Examples:
        >>> layer = MixtureLayer(channels=1, filters=4, size=(6, 6), blocks=1, components=3)
        >>> x = torch.randn(2, 1, 6, 6)
        >>> y, log_det = layer(x)
        >>> bool(torch.allclose(layer.inverse(y), x, atol=1e-4))
        True
        >>> layer.certify().onto
        True
    """

    given_context: Tensor | None = None  # (batch, features), of a layer that `given` gave

    def __init__(
        self,
        channels: int,
        filters: int,
        size: tuple[int, int] | tuple[()],
        blocks: int = 4,
        components: int = 8,
        upper: bool = False,
        context: int = 0,
    ) -> None:
        super().__init__()
        check_positive(channels=channels, filters=filters, components=components)
        check_size(size, vectors=True)
        self.event_shape, self.filters = (channels, *size), filters
        self.ordering = Ordering(upper)
        self.network = MixtureNetwork(channels, filters, size, blocks, components, upper, context)
        raw_t = math.log(math.expm1(0.01 - T_FLOOR))
        self.raw_t = nn.Parameter(torch.full((channels, *(1 for _ in size)), raw_t))
        weights = sum(conv.mask.numel() for conv in self.network.convolutions)
        self.work = 2.0 * weights * math.prod(size)

    @property
    def t(self) -> Tensor:
        """The positive factor of x, (C, 1, 1), or (C,) for vectors."""
        return T_FLOOR + F.softplus(self.raw_t)

    def function(self, x: Q) -> Q:
        return x.through_monotone(MixtureMap(self, self.given_context))

    def given(self, context: Tensor) -> MixtureLayer:
        """The layer for samples with this context, (batch, features); it shares its weights."""
        self.network.context_shifts(context)  # raises if it does not fit
        layer = MixtureLayer.__new__(MixtureLayer)  # a shallow copy: torch cannot trace copy.copy
        own = {"given_context": context, "_proof": None, "_compiled_call_impl": None}
        layer.__dict__.update(self.__dict__ | own)
        return layer

    def rows(self, chosen: Tensor) -> MixtureLayer:
        return self if self.given_context is None else self.given(self.given_context[chosen])

    def initialize(self, x: Tensor) -> None:
        """Set the linear prediction and the widths of the components from samples."""
        self.network.initialize(x)

    def evaluator(self) -> Evaluate:
        return self.value_and_slope  # solvers give it the context of their samples

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.value_and_slope(x, self.given_context)

    def value_and_slope(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """f(x) and diag J(x), both of the shape of x."""
        prediction, t = _places(self.network.prediction(x)), self.t.reshape(-1, 1)
        raw = self.network(x, context)
        mixture = self.network.mixture(raw, prediction, t, self.network.reach)
        value, slope = mixture.value_and_slope(_places(x))
        return value.view_as(x), slope.view_as(x)

    def system(self) -> System:
        system, levels = super().system(), MixtureMap(self)
        return replace(system, levels=lambda x: levels, context=self.given_context)

    def require_proof(self) -> None:
        """Nothing to ask: diag J ≥ t > 0 whatever the weights are."""

    def slope_floor(self) -> tuple[Tensor, Tensor]:
        t = self.t.expand(self.event_shape)
        return t, torch.ones_like(t)

    def start(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    @property
    def name(self) -> str:
        shape = "×".join(map(str, self.event_shape))
        order = "upper" if self.ordering.upper else "lower"
        given = "" if self.given_context is None else ", given a context"
        return f"{order} MixtureLayer {shape}, {self.network.extra_repr()}{given}"

    def extra_repr(self) -> str:
        return self.name


class MixtureMap(MonotoneMap, LevelMap):
    """The function of a mixture layer in the calculus."""

    def __init__(self, layer: MixtureLayer, context: Tensor | None = None) -> None:
        self.layer, self.ordering, self.context = layer, layer.ordering, context

    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer.value_and_slope(x, self.context)

    def slope_range(self, shape: tuple[int, ...]) -> Interval:
        """[t, t + max a], with a ≤ e^9."""
        t = self.layer.t.detach().cpu().double().expand(1, *shape)
        return Interval.of(t, (t + math.exp(-LEAST_LOG_SCALE)).nextafter(torch.tensor(math.inf)))

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.layer.parameters())

    def convolutions(self) -> list[LinearMap]:
        network, groups = self.layer.network, self.layer.event_shape[0]
        kind = Convolution if len(self.layer.event_shape) == 3 else Dense
        masked = [*network.convolutions, network.linear]
        biases = [network.first_bias, *(m.bias for m in masked[1:])]
        pairs = zip(masked, biases, strict=True)
        return [kind(m.weight * m.mask, bias, groups, self.ordering) for m, bias in pairs]

    def constants(self, context: Tensor | None) -> tuple[Tensor, ...]:
        """t and r (C, 1), steps (2, C, J, 1), the shifts of the context (blocks, C, K, batch)."""
        network = self.layer.network
        found = self.layer.t.reshape(-1, 1), network.reach, network.steps[..., None]
        shifts = network.context_shifts(context)
        return found if shifts is None else (*found, shifts.movedim(1, 3))

    def keep_input(self, walk: LevelWalk, level: int, x: Tensor) -> None:
        seen = with_steps(x[:, None], walk.constants[2][:, walk.channels(level)])
        for index in (0, len(self.layer.network.convolutions)):
            walk.keep(level, index, seen)

    def solve_level(self, walk: LevelWalk, level: int, target: Tensor) -> Tensor:
        convolve = partial(walk.convolve, level)
        return self.mixtures(convolve, walk.constants, walk.channels(level)).invert(target)

    def mixtures(self, convolve: Convolve, constants: tuple[Tensor, ...], at: slice) -> Mixture:
        """Those of the entries of one level, (A, n·B), in the channels of a slice."""
        network, (t, reach, _, *shifts) = self.layer.network, constants
        prediction = SLOW * convolve(len(network.convolutions), None)[:, 0]
        at_level = None
        if shifts:  # (blocks, A, K, n·B): the same for all n places of a sample
            places = prediction.shape[1] // shifts[0].shape[-1]
            at_level = shifts[0][:, at].repeat(1, 1, 1, places)
        raw = network.features(convolve, at_level, -2)
        return network.mixture(raw, prediction, t[at], reach[at])

    def __str__(self) -> str:
        return "a mixture of logistics"


def _places(x: Tensor) -> Tensor:
    """(batch, C, H, W) as (batch, C, H·W), and vectors (batch, C) as (batch, C, 1)."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
