"""Posterior samples of what a picture hides, with a density model as the prior.

Of a picture x some entries are unknown, or all are seen through noise or as means of blocks:

    log p(x | seen) = log p(x) + log p(seen | x) + constant.

A flow of one mixture layer is sampled entry after entry, see `particles`. Otherwise, and for zoom,
it is sampled by Hamiltonian Monte Carlo on w = logit x of the unknown entries, with the exact
gradient of the flow and the Jacobian x (1 − x). Each of n chains starts from a flat guess at a
high temperature, which falls to 1 during the first half of the steps (simulated annealing); step
size and masses (mean squares of the gradients of entries) are adapted in that half alone. What is
seen stays as it is; its dequantization noise is drawn once for each chain.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.analysis.particles import Likelihood, drawn_by, effective_draws, particles
from mintnet.bijections import MixtureLayer
from mintnet.models import Flow
from mintnet.models.batches import Progress
from mintnet.models.deep import Labels
from mintnet.precision import true_float32

HOTTEST, LEAPS, WANTED = 10.0, 5, 0.8  # temperature at the start; steps of a proposal; acceptance
FARTHEST = 14.0  # of w: float32 has no finer pixels next to black and white
AT_ONCE = 64  # chains whose gradients are computed at a time


@dataclass(frozen=True)
class Restoration:
    """Samples of a posterior; with fewer effective ones than n they are not independent."""

    samples: Tensor  # (n, C, H, W) uint8, the last state of each chain, or particles
    mean: Tensor  # (C, H, W) of all states at temperature 1 or particles, in grey levels
    spread: Tensor  # (C, H, W) their standard deviation; 0 where the picture is known
    acceptance: float  # share of accepted proposals at temperature 1, or of particles that count
    effective: float  # effective sample size of the mean, the median over unknown entries: by the
    # variance between and within chains; particles that share the draw of an entry count once


def restore(
    flow: Flow,
    image: Tensor,
    mask: Tensor | None = None,
    *,
    noise: float | None = None,
    zoom: int | None = None,
    n: int = 8,
    seed: int = 0,
    steps: int | None = None,
    labels: Labels = None,
    progress: Progress | None = None,
) -> Restoration:
    """Sample pictures that a uint8 image (C, H, W) with something hidden may have been.

    One of three: ``mask`` (H, W), True where pixels are unknown; ``noise``, the standard deviation
    of Gaussian noise with pixels in [0, 1], as 25 / 255; ``zoom`` = 2, with an image (C, H / 2,
    W / 2) of the means of 2 × 2 blocks. ``steps`` is the number of gradients of each chain, 200 if
    not given, or of particles for each sample, 16 if not given.

    Examples:
        >>> flow, image = Flow.preset("digits"), torch.zeros(1, 8, 8, dtype=torch.uint8)
        >>> mask = torch.zeros(8, 8, dtype=torch.bool)
        >>> mask[4:] = True
        >>> found = restore(flow, image, mask, n=2, steps=20)
        >>> found.samples.shape, bool((found.samples[:, :, :4] == 0).all())
        (torch.Size([2, 1, 8, 8]), True)
    """
    if sum(way is not None for way in (mask, noise, zoom)) != 1:
        raise ValueError("expected one of mask, noise and zoom")
    one = zoom is None and [type(leaf) for leaf in flow.net.leaves()] == [MixtureLayer]
    few, usual = (1, 16) if one else (4 * LEAPS, 200)  # particles of a sample, or gradients
    steps = usual if steps is None else steps
    if n < 1 or steps < few:
        raise ValueError(f"n is at least 1, and steps here at least {few}; got {n} and {steps}")
    c, h, w = flow.shape
    small = (c, h // 2, w // 2) if zoom is not None else flow.shape
    if zoom is not None and (zoom != 2 or h % 2 or w % 2):
        raise ValueError(f"zoom is 2, of images with even sides; got {zoom} for {h} × {w} pixels")
    if image.dtype != torch.uint8 or tuple(image.shape) != small:
        got = f"{image.dtype} of shape {tuple(image.shape)}"
        raise ValueError(f"expected a uint8 picture of shape {small}; got {got}")
    if int(image.max()) >= flow.levels:
        raise ValueError(f"this model knows {flow.levels} grey levels; got {int(image.max())}")
    if noise is not None and not 0 < noise <= 1:
        raise ValueError(f"noise is a standard deviation above 0 and up to 1 (white); got {noise}")
    free = torch.ones(h, w, dtype=torch.bool) if mask is None else mask
    if free.dtype != torch.bool or tuple(free.shape) != (h, w):
        got = f"{free.dtype} of shape {tuple(free.shape)}"
        raise ValueError(f"expected a bool mask of shape {(h, w)}, True: unknown; got {got}")
    if not bool(free.any()):
        raise ValueError("the mask hides nothing: True, or white, is where pixels are unknown")
    image, free = image.to(flow.device), free.to(flow.device)
    generator = torch.Generator().manual_seed(seed)
    seen = None if noise is None else noisy(image, noise, flow.levels)
    if one:
        flow = flow.in_float64()
        ends = torch.stack([torch.where(free, k, image).long() for k in (0, flow.levels - 1)])
        context = flow.context(labels, n * steps)
        x, z, weights = particles(flow, context, ends, seen, (n, steps), generator, progress)
        levels = torch.where(free, (x * flow.levels).floor().clamp(0, flow.levels - 1), image)
        mean, square = (torch.tensordot(weights, v.double(), 1) for v in (levels, levels**2))
        spread = torch.where(free, (square - mean**2).clamp(min=0).sqrt(), 0.0)
        samples = levels[drawn_by(weights[None], n, generator)].to(torch.uint8)
        found = samples.cpu(), torch.where(free, mean, image).cpu(), spread.cpu()
        share = 1 / float(weights.square().sum()) / len(weights)
        return Restoration(*found, share, effective_draws(z[free.flatten().repeat(c)], weights))
    u = torch.rand(n, *small, generator=generator).to(flow.device, flow.dtype)
    start = (image + u) / flow.levels  # (n, …) in the unit cube
    if zoom is not None:
        seen = blocks(image, flow.levels)
        start = start.repeat_interleave(2, 2).repeat_interleave(2, 3)
    elif mask is not None:
        start = torch.where(free, start[:, :, ~free].mean() if not bool(free.all()) else 0.5, start)
    chains = _Chains(flow, start, free, seen, labels, generator)
    moments, count = torch.zeros(2, n, c, h, w, dtype=torch.float64, device=flow.device), 0
    rounds, accepted = steps // LEAPS, 0.0
    with true_float32():
        for k in range(rounds):
            warm = 1 - 2 * (k + 1) / rounds  # from 1 to 0 in the first half
            share = chains.advance(HOTTEST ** max(0.0, warm), adapt=warm > 0)
            if warm <= 0:
                x = chains.pixels(chains.w).double()
                moments += torch.stack([x, x * x])
                count, accepted = count + 1, accepted + share
            if progress is not None:
                progress(k + 1, rounds)
    samples = (chains.pixels(chains.w) * flow.levels).floor().clamp(0, flow.levels - 1)
    means, squares = moments / count
    mean, variance = means.mean(0), (squares.mean(0) - means.mean(0) ** 2).clamp(min=0)
    grey = (mean * flow.levels - 0.5).clamp(0, flow.levels - 1)
    if mask is not None:
        samples, grey = torch.where(free, samples, image), torch.where(free, grey, image.double())
    spread, effective = torch.where(free, variance.sqrt() * flow.levels, 0.0), math.nan
    if n > 1:
        ratio = (variance / means.var(0).clamp(min=1e-30)).clamp(max=count)[:, free]
        effective = n * float(ratio.median())
    found = samples.to(torch.uint8).cpu(), grey.cpu(), spread.cpu()
    return Restoration(*found, accepted / count, effective)


def noisy(image: Tensor, noise: float, levels: int) -> Likelihood:
    """log p(image | x) + constant, of Gaussian noise; black and white stand for all beyond."""
    centre = (image + 0.5) / levels

    def likelihood(x: Tensor) -> Tensor:
        inside = -0.5 * ((x - centre) / noise) ** 2
        below = torch.special.log_ndtr((1 / levels - x) / noise)
        above = torch.special.log_ndtr((x - 1 + 1 / levels) / noise)
        return torch.where(image == 0, below, torch.where(image == levels - 1, above, inside))

    return likelihood


def blocks(image: Tensor, levels: int) -> Likelihood:
    """log p(image | x) of means of 2 × 2 blocks, rounded to bytes, up to a constant."""
    centre = (image + 0.5) / levels
    return lambda x: -0.5 * (2 * levels * (F.avg_pool2d(x, 2) - centre)).square()


@dataclass
class _Chains:
    """Hamiltonian Monte Carlo of n chains on w (n, C, H, W), with shared masses and step size."""

    flow: Flow
    known: Tensor
    free: Tensor
    seen: Likelihood | None
    labels: Labels
    generator: torch.Generator
    step: float = 0.3

    def __post_init__(self) -> None:
        noise = torch.where(self.free, self._normal(), 0.0)
        self.w = self.known.clamp(1e-6, 1 - 1e-6).logit() + noise
        self.value, self.slope = self._evaluate(self.w)
        self.mass = self.slope.square().mean(0).clamp(min=0.01)

    def pixels(self, w: Tensor) -> Tensor:
        """x: known entries as they are."""
        return torch.where(self.free, w.sigmoid(), self.known)

    def advance(self, temperature: float, adapt: bool) -> float:
        """One proposal for each chain; gives the share that was accepted."""
        step = self.step * (0.8 + 0.4 * float(torch.rand((), generator=self.generator)))
        momentum = self._normal() * self.mass.sqrt() * self.free
        begin = self.value / temperature - self._kinetic(momentum)
        w, slope, value = self.w, self.slope, self.value
        for _ in range(LEAPS):
            momentum = momentum + 0.5 * step / temperature * slope
            w = (w + step * momentum / self.mass).clamp(-FARTHEST, FARTHEST)
            value, slope = self._evaluate(w)
            momentum = momentum + 0.5 * step / temperature * slope
        gain = (value / temperature - self._kinetic(momentum) - begin).nan_to_num(nan=-math.inf)
        accept = torch.rand(len(gain), generator=self.generator).to(gain.device).log() < gain
        keep = accept[:, None, None, None]
        self.w, self.slope = torch.where(keep, w, self.w), torch.where(keep, slope, self.slope)
        self.value = torch.where(accept, value, self.value)
        if adapt:
            chance = float(gain.clamp(max=0).exp().mean())
            self.step = min(max(self.step * math.exp(0.7 * (chance - WANTED)), 1e-3), 1.5)
            fresh = (self.slope / temperature).square().mean(0).clamp(min=0.01)
            self.mass = torch.lerp(self.mass, fresh, 0.2)
        return float(accept.double().mean())

    def _normal(self) -> Tensor:
        return torch.randn(self.known.shape, generator=self.generator).to(self.known)

    def _kinetic(self, momentum: Tensor) -> Tensor:
        return 0.5 * (momentum.square() / self.mass).flatten(1).sum(1)

    def _evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithm of the density of w, (n,), and its gradient."""
        parts = zip(w.split(AT_ONCE), self.known.split(AT_ONCE), strict=True)
        values, slopes = zip(*(self._of_some(*part) for part in parts), strict=True)
        return torch.cat(values), torch.cat(slopes)

    def _of_some(self, w: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        flow, every = self.flow, self.labels is None and self.flow.classes
        with torch.enable_grad():
            w = w.detach().requires_grad_(True)
            x = torch.where(self.free, w.sigmoid(), known)
            labels = range(flow.classes) if every else [self.labels]
            each = [flow.log_density(x, context=flow.context(k, len(w))) for k in labels]
            value = torch.stack(each).logsumexp(0)
            value = value + (self.free * (F.logsigmoid(w) + F.logsigmoid(-w))).flatten(1).sum(1)
            if self.seen is not None:
                value = value + self.seen(x).flatten(1).sum(1)
            (slope,) = torch.autograd.grad(value.sum(), w)
        return value.detach(), slope * self.free
