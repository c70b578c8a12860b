"""Deep triangular layers: a mixture of logistics with parameters from a deep masked network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.bijections.grey_levels import SHARE, GreyLevelMixture, between_knots
from mintnet.bijections.logistics import Mixture
from mintnet.bijections.mixture_network import (
    LEAST_LOG_SCALE,
    SLOW,
    MixtureNetwork,
    with_steps,
)
from mintnet.bijections.triangular import Q, TriangularBijection
from mintnet.calculus import Convolution, Dense, LinearMap, Ordering
from mintnet.calculus.conditioner import MonotoneMap
from mintnet.calculus.interval import Interval
from mintnet.calculus.masks import MASKS, check_positive, check_size
from mintnet.solvers import Evaluate, Solver, System
from mintnet.solvers.levels import LevelMap, LevelWalk

ALL = slice(None)
PIXELS = 1e-6  # tolerance in float64: x in [0, 1] has 1e-16, and slopes of pixels are up to 1e10
T_FLOOR = 1e-3  # the least t: it binds nothing in trained models and keeps slopes away from 0


class MixtureLayer(TriangularBijection):
    r"""y = t ⊙ x + logit F(x) with F a mixture of logistic distribution functions for each entry:

        F(xᵢ) = Σₖ πₖ σ(aₖ (xᵢ − ℓ) − mₖ),     (π, a, m, ℓ) from strictly earlier entries

    The parameters come from a network of masked 3 × 3 convolutions with gated residual blocks, as
    deep as one likes: an entry still depends on earlier levels alone, 4c + 2r + q in the raster
    order and 2r + q, then c, in the order of pixels, so that depth does not lengthen the inverse.
    The slope lies in [t, t + max a] and logit F takes every real value, so the layer is onto for
    any finite weights.

    With ``levels`` = L, x are pixels in [0, 1] with L grey levels, dequantized. F is then linear
    within each level, as the distribution of the noise is, and there is no t: `GreyLevelMixture`.
    In float64 such layers are inverted to 1e-6 of max |z|, where others are to 1e-12.

    Args:
        channels: C.
        filters: K; the hidden width is C · K, in the order of pixels rounded up to a multiple of 8
            where there are several channels.
        size: (H, W), or () for vectors of C entries, whose network has masked matrices.
        blocks: residual blocks of the network.
        components: of the mixture.
        upper: triangular from the other end.
        context: features of each sample that the network sees as well, 0 for none; a layer with
            context is used as ``layer.given(context)``.
        order: ``raster``, channel by channel, or ``pixel``, where an entry of an image sees all
            channels of earlier pixels, see `Ordering`.
        levels: L of pixels, 0 for a layer of any real numbers.

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
    raw_t: nn.Parameter | None
    raw_knots: nn.Parameter | None

    def __init__(
        self,
        channels: int,
        filters: int,
        size: tuple[int, int] | tuple[()],
        blocks: int = 4,
        components: int = 8,
        upper: bool = False,
        context: int = 0,
        order: str = "raster",
        levels: int = 0,
    ) -> None:
        super().__init__()
        check_positive(channels=channels, filters=filters, blocks=blocks, components=components)
        if levels:
            check_positive(levels=levels)
        check_size(size, vectors=True)
        self.event_shape, self.filters = (channels, *size), filters
        if order not in tuple(MASKS) or (order != "raster" and not size):
            known = " or ".join(MASKS) if size else "raster, as for all vectors"
            raise ValueError(f"order: expected {known}; got {order!r}")
        self.ordering = Ordering(upper, order)
        sizes = channels, filters, size, blocks, components
        self.network = MixtureNetwork(*sizes, self.ordering, context)
        raw_t = math.log(math.expm1(0.01 - T_FLOOR))
        raw = torch.full((channels, *(1 for _ in size)), raw_t)
        knots = torch.tensor([-1.0] + levels * [2 / max(1, levels)])  # −1, and steps up to 1
        self.raw_t = None if levels else nn.Parameter(raw)
        self.raw_knots = nn.Parameter(knots, requires_grad=False) if levels else None
        weights = sum(conv.mask.numel() for conv in self.network.convolutions)
        self.work = 2.0 * weights * math.prod(size)

    @property
    def levels(self) -> int:
        """L, the grey levels of the pixels that it takes; 0 for any real numbers."""
        return 0 if self.raw_knots is None else len(self.raw_knots) - 1

    @property
    def t_or_knots(self) -> Tensor:
        """t, the positive factor of x, (C, 1); of pixels c₀ ≤ … ≤ c_L instead, (L + 1,)."""
        if self.raw_knots is not None:
            first, steps = self.raw_knots[:1], self.raw_knots[1:]
            return torch.cat([first, steps.abs()]).cumsum(0)  # in order, whatever the weights are
        assert self.raw_t is not None
        return (T_FLOOR + F.softplus(self.raw_t)).reshape(-1, 1)

    def coordinates(self, x: Tensor, t_or_knots: Tensor) -> Tensor:
        """x as network and mixtures see it: pixels between the knots."""
        return between_knots(x, t_or_knots) if self.levels else x

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
        self.network.initialize(self.coordinates(x, self.t_or_knots))

    @torch.no_grad()
    def equalize(self, images: Tensor) -> None:
        """Set the knots from integer images: c_j = logit of the share of the levels below j.

        Grey levels that many pixels have are then as far apart as if all pixels were logistic. The
        outermost levels have their median in the middle.
        """
        if self.raw_knots is None or self.levels == 1:
            return
        counts = images.flatten().int().bincount(minlength=self.levels).double() + 1.0
        shares = counts / counts.sum()
        inner = shares.cumsum(0)[:-1].logit()
        first, last = (0.5 * shares[[0, -1]]).logit()  # their medians, the last one negative
        knots = torch.cat([(2 * first - inner[0])[None], inner, (-2 * last - inner[-1])[None]])
        self.raw_knots.copy_(torch.cat([knots[:1], knots.diff()]))

    def evaluator(self) -> Evaluate:
        return self.value_and_slope  # solvers give it the context of their samples

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.value_and_slope(x, self.given_context)

    def value_and_slope(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """f(x) and diag J(x), both of the shape of x."""
        network, t_or_knots = self.network, self.t_or_knots
        at = self.coordinates(x, t_or_knots)
        raw, prediction = network(at, context), _places(network.prediction(at))
        mixture = self.mixture(raw, prediction, network.reach, t_or_knots)
        value, slope = mixture.value_and_slope(_places(x))
        return value.view_as(x), slope.view_as(x)

    def mixture(
        self,
        raw: Tensor,
        prediction: Tensor,
        reach: Tensor,
        t_or_knots: Tensor,
        channels: slice = ALL,
    ) -> Mixture | GreyLevelMixture:
        """The mixtures of raw (…, 3·M + 1, n), ℓ (…, n) of these channels, and r, t or knots."""
        parameters = self.network.parameters_of(raw, prediction, reach[channels])
        if self.levels:
            return GreyLevelMixture(*parameters, t_or_knots)
        return Mixture(*parameters, t_or_knots[channels])

    def system(self) -> System:
        system, levels = super().system(), MixtureMap(self)
        return replace(system, levels=lambda x: levels, context=self.given_context)

    def require_proof(self) -> None:
        """Nothing to ask: diag J > 0 whatever the weights are, see `slope_range`."""

    def slope_range(self) -> tuple[Tensor, float]:
        """Bounds of diag J: the lower one, and how far above it the upper one lies.

        t and max a ≤ e^9. Of pixels, L P / (F (1 − F)) lies between 4 L e and 2 L / e with the
        least probability e = ε / (L + 2): F (1 − F) ≤ 1/4, and its inverse is 1 / F + 1 / (1 − F).
        """
        ones = self.network.linear.weight.detach().new_ones(self.event_shape)
        if not self.levels:
            t = self.t_or_knots.detach().view(-1, *(1,) * (ones.dim() - 1)) * ones
            return t, math.exp(-LEAST_LOG_SCALE)
        least = 0.999 * SHARE / (self.levels + 2)  # a little less, for rounding
        return 4 * self.levels * least * ones, 2 * self.levels / least

    def tolerance_of(self, dtype: torch.dtype, solver: Solver | None) -> float:
        chosen = solver is not None and solver.tolerance is not None
        coarse = self.levels and dtype == torch.float64 and not chosen
        return PIXELS if coarse else super().tolerance_of(dtype, solver)

    def slope_floor(self) -> tuple[Tensor, Tensor]:
        low = self.slope_range()[0]
        return low, torch.ones_like(low)

    def start(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    @property
    def name(self) -> str:
        shape = "×".join(map(str, self.event_shape))
        side = "upper" if self.ordering.upper else "lower"
        order = "" if self.ordering.name == "raster" else f", order {self.ordering.name}"
        given = "" if self.given_context is None else ", given a context"
        return f"{side} MixtureLayer {shape}, {self.network.extra_repr()}{order}{given}"

    def extra_repr(self) -> str:
        return self.name


class MixtureMap(MonotoneMap, LevelMap):
    """The function of a mixture layer in the calculus."""

    def __init__(self, layer: MixtureLayer, context: Tensor | None = None) -> None:
        self.layer, self.ordering, self.context = layer, layer.ordering, context

    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer.value_and_slope(x, self.context)

    def slope_range(self, shape: tuple[int, ...]) -> Interval:
        low, more = self.layer.slope_range()
        low = low.cpu().double().expand(1, *shape)
        return Interval.of(low, (low + more).nextafter(torch.tensor(math.inf)))

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.layer.parameters())

    @property
    def members(self) -> int:  # type: ignore[override]
        return self.layer.network.members

    def convolutions(self) -> list[LinearMap]:
        network, shape = self.layer.network, self.layer.event_shape
        kind, groups = Convolution if len(shape) == 3 else Dense, shape[0] // self.members
        last = len(network.convolutions) - (self.members > 1)  # at a pixel, O is for each channel
        masked = [*network.convolutions[:last], network.linear]
        biases = [network.first_bias, *(m.bias for m in masked[1:])]
        pairs = zip(masked, biases, strict=True)
        return [kind(m.weight * m.mask, bias, groups, self.ordering) for m, bias in pairs]

    def constants(self, context: Tensor | None) -> tuple[Tensor, ...]:
        """t (or knots), r (C, 1), steps (2, C, J, 1); P, Q, O, their biases (C, …); shifts V c."""
        network = self.layer.network
        found = [self.layer.t_or_knots, network.reach, network.steps[..., None]]
        pixel = [network.shared, network.own, network.convolutions[-1]] if self.members > 1 else []
        for m in pixel:
            parts = (m.weight * m.mask)[:, :, 0, 0], m.bias[:, None]
            found += [part.unflatten(0, (self.members, -1)) for part in parts]
        if (shifts := network.context_shifts(context)) is not None:
            found.append(shifts.movedim(1, 3))  # (blocks, groups, features, batch)
        return tuple(found)

    def keep_input(self, walk: LevelWalk, level: int, x: Tensor) -> None:
        groups = walk.channels(level)
        at = slice(groups.start * self.members, groups.stop * self.members)
        x = self.layer.coordinates(x, walk.constants[0])
        known = with_steps(x[:, None], walk.constants[2][:, at])
        for index in (0, len(walk.caches) - 1):
            walk.keep(level, index, known)

    def solve_level(self, walk: LevelWalk, level: int, target: Tensor) -> Tensor:
        return self.find(walk, level, lambda rows, mixture: mixture.invert(target[rows]))

    def find(
        self,
        walk: LevelWalk,
        level: int,
        solve: Callable[[slice, Mixture | GreyLevelMixture], Tensor],
    ) -> Tensor:
        """x of a level, (A, n·B), by ``solve`` of rows of it and of the mixtures of their entries.

        In the order of pixels, the channels of a pixel are solved one after the other.
        """
        network, (t_or_knots, reach, steps, *more) = self.layer.network, walk.constants
        convolve, at, members = partial(walk.convolve, level), walk.channels(level), self.members
        shifts = None
        if network.context:  # the same for all n places of a sample
            shifts = more.pop()[:, at].repeat(1, 1, 1, walk.entries(level).shape[1])
        h = network.features(convolve, shifts, -2)
        prediction = SLOW * walk.known(level, len(walk.caches) - 1)  # (groups, members, n·B)
        if members == 1:
            raw = convolve(len(network.convolutions) - 1, F.silu(h))
            mixture = self.layer.mixture(raw, prediction[:, 0], reach, t_or_knots, at)
            return solve(ALL, mixture)
        shared, bias, own, own_bias, head, head_bias = more
        own_prediction = SLOW * walk.diagonal(len(walk.caches) - 1)[0]
        hidden = torch.baddbmm(bias + own_bias, shared, h.expand(members, -1, -1))
        v, x = torch.zeros_like(hidden), torch.zeros_like(prediction[0])
        known_x = x.new_zeros(members, steps.shape[2] + 1, x.shape[1])
        for c in range(members)[:: -1 if self.ordering.upper else 1]:
            row, known = slice(c, c + 1), known_x.flatten(0, 1)
            v[c] = F.silu(torch.addmm(hidden[c], own[c], known))
            raw = torch.addmm(head_bias[c], head[c], v.flatten(0, 1))[None]
            centre = torch.addmm(prediction[0, row], own_prediction[row], known)
            mixture = self.layer.mixture(raw, centre, reach, t_or_knots, row)
            x[row] = solve(row, mixture)
            own_x = self.layer.coordinates(x[row, None], t_or_knots)
            known_x[c] = with_steps(own_x, steps[:, row])[0]
        return x

    def __str__(self) -> str:
        return "a mixture of logistics"


def _places(x: Tensor) -> Tensor:
    """(batch, C, H, W) as (batch, C, H·W), and vectors (batch, C) as (batch, C, 1)."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
