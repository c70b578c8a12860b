"""Sequential Monte Carlo for flows of one mixture layer: exact draws, entry after entry.

Such a flow gives the probability of an entry's grey level k, given earlier entries, by formula.
Particles draw levels from q, then places inside of them, and multiply their weights by Σ q:

    q(k) ∝ P(k | earlier entries) · p(seen | k).

A known pixel has one possible level; a hidden one has all, and keeps its weight. Where fewer than
half of the particles count, they are drawn anew. What is drawn is z, and x its inverse, verified.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.special import ndtr, ndtri

from mintnet.bijections import MixtureLayer
from mintnet.bijections.grey_levels import GreyLevelMixture
from mintnet.bijections.logistics import Mixture
from mintnet.bijections.mixture import MixtureMap
from mintnet.models import Flow
from mintnet.models.batches import Progress
from mintnet.precision import true_float32
from mintnet.solvers import REMEDY, Solution, Wavefront
from mintnet.solvers.levels import LevelWalk
from mintnet.solvers.solution import checked
from mintnet.solvers.verified import verified

BASES = {"normal": (ndtr, ndtri), "logistic": (torch.sigmoid, torch.logit)}  # P(z), inverse
Likelihood = Callable[[Tensor], Tensor]  # x ↦ log p(seen | x) of each entry or block, (n, …)


@torch.no_grad()
@true_float32()
def particles(
    flow: Flow,
    context: Tensor | None,
    ends: Tensor,
    seen: Likelihood | None,
    sizes: tuple[int, int],
    generator: torch.Generator,
    progress: Progress | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """x in [0, 1], (P, C, H, W), z, (D, P), and the weights, (P,), of all particles.

    ``ends``: least and largest grey level of each entry, (2, C, H, W); ``sizes``: groups, particles
    in each. Groups are independent; their mean weights are flattened until 3/4 of them count.
    """
    (layer,), (cdf, quantile), count = flow.net.leaves(), BASES[flow.base_name], math.prod(sizes)
    assert isinstance(layer, MixtureLayer)
    x = torch.zeros(count, *flow.shape, dtype=flow.dtype, device=flow.device)
    function, logs = MixtureMap(layer, context), x.new_zeros(sizes, dtype=torch.float64)
    walk, (x, z) = LevelWalk(function, x, context), x.flatten(1).T.repeat(2, 1, 1)
    half = torch.arange(2 * flow.levels + 1, device=z.device).double() / (2 * flow.levels)
    edges = flow.pixels.value(half[None, ::2])[0]  # of grey levels, as the layer sees them
    edges[0], edges[-1], likelihood = -math.inf, math.inf, half.new_ones(len(z), 1)
    edges_of = edges[ends.flatten(1).T + torch.arange(2, device=z.device)]  # (D, 2)
    if seen is not None:  # (D, L), and (D, L + 1)
        table = seen(half[1::2].view(-1, 1, 1, 1)).flatten(1).T
        likelihood, edges_of = table.exp(), edges.expand(len(z), -1)
    unlike = context is not None and bool((context != context[0]).any())  # the class is unknown
    sees = layer.network.linear.mask.unflatten(1, (flow.shape[0], -1))[:, :, 0].float()
    counted = ((ends[0] < ends[1]) | unlike)[None].float()
    for _ in walk.schedule.levels:  # known entries count if they depend on others
        counted = (counted + F.conv2d(counted, sees, padding=1)).clamp(max=1)
    drawn: list[Tensor] = []  # of the entries of a level, Σ q of each particle

    def draw(entries: Tensor, rows: slice, mixture: Mixture | GreyLevelMixture) -> Tensor:
        """x of rows of the entries of a level, (A, n·P); z and Σ q are noted."""
        at = entries[rows].flatten()
        each, repeated = at.unique(return_inverse=True)
        u = torch.rand(2, len(each), count, 1, generator=generator, dtype=torch.float64)
        u, again = u.to(z.device)[:, repeated], (repeated[:, None] == repeated).tril(-1).any(1)
        *parts, t_or_knots = (part.double() for part in mixture)
        parts.append(edges_of[at, None].expand(-1, count, -1).reshape(*mixture.centre.shape, -1))
        pieces = zip(*(part.split(count, 1) for part in parts), strict=True)  # fit in the caches
        kind = type(mixture)
        values = [kind(w, a, m, c, t_or_knots).value(points) for w, a, m, c, points in pieces]
        value = torch.cat(values, 1).view(len(at), count, -1)
        below = cdf(value)
        mass = below.diff().clamp(min=1e-300)
        sums = (mass * likelihood[at, None]).cumsum(-1)
        k = torch.searchsorted(sums, u[0] * sums[..., -1:])
        p = (below.gather(-1, k) + u[1] * mass.gather(-1, k)).clamp(1e-300, 1 - 1e-15)
        codes = quantile(p).clamp(value.gather(-1, k), value.gather(-1, k + 1)).to(z)
        z[at] = codes[..., 0]
        drawn.append(sums[(counted.flatten()[at] > 0) & ~again, :, -1])  # rectangles repeat some
        return mixture.invert(codes.view(mixture.centre.shape))

    for number in range(walk.depth):
        entries = walk.entries(number)
        found = function.find(walk, number, partial(draw, entries))
        x[entries] = found.view(*entries.shape, count)
        function.keep_input(walk, number, found)
        logs = logs + torch.cat(drawn).log().sum(0).view_as(logs)
        drawn.clear()
        if float(logs.softmax(1).square().sum(1).reciprocal().mean()) < sizes[1] / 2:
            kept = drawn_by(logs.softmax(1), sizes[1], generator).bincount(minlength=count)
            lost = (kept == 0).nonzero().flatten()  # copies of others take their places
            copied = torch.arange(count).to(kept).repeat_interleave((kept - 1).clamp(min=0))
            for rows in (x, z, *(cache.rows for cache in walk.caches)):
                rows.index_copy_(1, lost, rows.index_select(1, copied))
            if context is not None:
                context = context.index_copy(0, lost, context[copied])
                walk.constants = function.constants(context)
            logs = logs.logsumexp(1, keepdim=True).expand_as(logs) - math.log(sizes[1])
        if progress is not None:
            progress(number + 1, walk.depth)
    x = walked_inverse(flow, context, x.T, z.T)
    flat = ((k / 20 * logs.logsumexp(1)).softmax(0) for k in range(20, -1, -1))
    groups = next(each for each in flat if 1 / float(each.square().sum()) > 0.74 * sizes[0])
    return flow.pixels.invert(x), z, (logs.softmax(1) * groups[:, None]).flatten()


def walked_inverse(flow: Flow, context: Tensor | None, x: Tensor, z: Tensor) -> Tensor:
    """x (P, D) of a walk, verified as the inverse of z (P, D); (P, C, H, W), or InversionError."""
    net, x, z = flow.given(context), x.reshape(-1, *flow.shape), z.reshape(-1, *flow.shape)

    def attempt(target: Tensor, rows: Tensor) -> Solution:
        if target.dtype != x.dtype:  # once more in float64, where rounding was too coarse
            return net.rows(rows).find(target, Wavefront())
        none = torch.zeros_like(rows, dtype=x.dtype)
        return checked("the walk", x[rows], none, none + 1, 0.0)

    def value(x: Tensor, rows: Tensor) -> Tensor:
        return net.rows(rows).value(x)

    return verified(attempt, value, z, net.tolerance_of(z.dtype, None)).require(REMEDY)


def drawn_by(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Numbers of ``count`` particles of each group by their weights, (groups, size)."""
    offset = torch.rand(len(weights), 1, generator=generator, dtype=torch.float64)
    at = ((torch.arange(count) + offset) / count).to(weights.device)
    found = torch.searchsorted(weights.cumsum(1), at).clamp(max=weights.shape[1] - 1)
    return (found + weights.shape[1] * torch.arange(len(found)).to(found)[:, None]).flatten()


def effective_draws(drawn: Tensor, weights: Tensor) -> float:
    """The effective number of distinct numbers in each row (entries, P): the median of the rows."""
    draws = (row.unique(return_inverse=True)[1] for row in drawn)
    shares = [torch.zeros_like(weights).index_add(0, draw, weights) for draw in draws]
    return 1 / float(torch.stack(shares).square().sum(1).median())
