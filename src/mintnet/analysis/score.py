"""How odd is a picture: bits, a p-value against reference images, and a map of nats.

Raw likelihood is not enough: constant and blurred pictures are likelier than real ones. Each
picture gets the statistics of `measure`, and is odd if they are too low or too high: − log p; the
same less what a compressor needs; and how far its code is from the white noise that it is under
the model. Ranks among reference images turn the statistics into standard normal t; the *oddness*
is tᵀ C⁻¹ t with the references' covariance C, a squared Mahalanobis distance; and

    p = (1 + #{references at least as odd}) / (1 + #references),

where the oddness of a reference is computed from the other nine tenths of them. Of pictures like
the references a share p gets a p-value of at most p, whatever the distributions are.
"""

import math
import zlib
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.bijections import Bijection
from mintnet.models import Flow
from mintnet.models.batches import Progress
from mintnet.models.storage import FEWEST
from mintnet.precision import true_float32

STATISTICS = {
    "bits": "bits per dimension",
    "excess": "bits beyond what a compressor needs",
    "variance": "variance of the code",
    "tails": "tails of the code",
    "rows": "correlation of the code along rows",
    "columns": "correlation of the code along columns",
    "channels": "correlation of the code between channels",
}
MOST = 2000  # reference images
FOLDS = 10
BINS = 16  # of texture
RIDGE = 1e-3  # on the covariance, for statistics that are nearly the same
LEAST_DEVIATION = 0.05  # nats: where references are all alike, smaller differences are none
FARTHEST = 38.0  # beyond it the density of a standard normal is 0 in double precision


@dataclass(frozen=True)
class Score:
    """What `score` finds about each picture; no maps where log p is no sum over pixels."""

    bits: Tensor  # (batch,) per dimension, the mean over the dequantization draws
    p_value: Tensor  # (batch,) the share of pictures like the references that are at least as odd
    oddness: Tensor  # (batch,) orders also those that are odder than all references
    statistics: Tensor  # (batch, 7) `STATISTICS`, made standard normal by the references
    map: Tensor | None  # (batch, H, W) nats of each pixel, which sum to − log p
    unusual: Tensor | None  # (batch, H, W) in standard deviations for each position and texture

    def flagged(self, rate: float = 0.01) -> Tensor:
        """Whether each picture is odd, (batch,), if that rate of false alarms is accepted."""
        if not 0 < rate < 1:
            raise ValueError(f"rate lies between 0 and 1; got {rate:g}")
        return self.p_value <= rate

    @property
    def reasons(self) -> list[str]:
        """For each picture the name of the statistic that is farthest from the references'."""
        return [list(STATISTICS)[k] for k in self.statistics.abs().argmax(1).tolist()]


@dataclass(frozen=True)
class Reference:
    """The scores of reference images, and how other pictures compare with them."""

    statistics: Tensor  # (n, 7)
    edges: Tensor | None = None  # (bins − 1,) between bins of texture
    texture: Tensor | None = None  # (2, bins) mean and standard deviation of the nats in each bin
    position: Tensor | None = None  # (2, H, W) the same of nats standardised by their texture
    draws: int = 1  # of dequantization noise, over which the statistics are means

    @classmethod
    def of(
        cls, flow: Flow, images: Tensor, draws: int = 1, progress: Progress | None = None
    ) -> Self:
        """Measure reference images (n, C, H, W); of more than 2,000, an even choice."""
        if len(images) < FEWEST:
            raise ValueError(f"expected at least {FEWEST} reference images; got {len(images)}")
        images = images[torch.linspace(0, len(images) - 1, min(len(images), MOST)).long()]
        statistics, _, maps = measure(flow, images, draws, None, progress)
        if maps is None:
            return cls(statistics.float(), draws=draws)
        rough, shares = texture(images.cpu()), torch.arange(1, BINS, dtype=torch.float64) / BINS
        edges = rough.flatten()[:: 1 + rough.numel() // 10**6].quantile(shares).unique()
        bins = torch.bucketize(rough, edges)
        by_bin = torch.stack([_moments(maps[bins == k]) for k in range(len(edges) + 1)], 1)
        mean, deviation = by_bin[:, bins]
        position = _moments((maps - mean) / deviation)
        kept = [tensor.float() for tensor in (statistics, edges, by_bin, position)]
        return cls(*kept, draws=draws)  # type: ignore[arg-type, misc]

    @classmethod
    def stored(cls, flow: Flow) -> Self:
        if flow.scores is None:
            words = "give images like those of its training, not among them (--reference DIR)"
            raise ValueError(f"this model has no reference scores; {words}")
        if flow.scores.get("statistics", torch.empty(0)).shape[1:] != (len(STATISTICS),):
            raise ValueError("the scores stored with this model are those of another version")
        known: dict[str, Any] = dict(flow.scores)
        return cls(**known | {"draws": int(known.get("draws", 1))})

    def tensors(self) -> dict[str, Tensor]:
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return known | {"draws": torch.tensor(float(self.draws))}

    @cached_property
    def fit(self) -> "Fit":
        """By all references."""
        return Fit(self.statistics.double())

    @cached_property
    def oddness(self) -> Tensor:
        """Of each reference by those of the other folds, sorted, (n,)."""
        statistics, fold = self.statistics.double(), torch.arange(len(self.statistics)) % FOLDS
        folds = [(Fit(statistics[fold != k]), statistics[fold == k]) for k in range(FOLDS)]
        found = [fit.oddness(fit.normal_scores(held)) for fit, held in folds]
        return torch.cat(found).sort().values

    def p_value(self, oddness: Tensor) -> Tensor:
        """(1 + #{references at least as odd}) / (1 + #references)."""
        count = len(self.statistics)
        return (1.0 + count - torch.searchsorted(self.oddness, oddness).double()) / (1.0 + count)

    def standardised(self, nats: Tensor, images: Tensor) -> Tensor | None:
        """A map (batch, H, W) in standard deviations for its positions and textures."""
        if self.edges is None or self.texture is None or self.position is None:
            return None
        bins = torch.bucketize(texture(images), self.edges.double())
        (mean, deviation), (shift, spread) = self.texture.double()[:, bins], self.position.double()
        return ((nats - mean) / deviation - shift) / spread  # type: ignore[no-any-return]


class Fit:
    """Normal scores and Mahalanobis distances by the statistics (n, k) of references."""

    def __init__(self, reference: Tensor) -> None:
        count, width = reference.shape
        self.sorted = reference.T.sort(1).values.contiguous()
        self.normal: Tensor = torch.special.ndtri((torch.arange(count).double() + 0.5) / count)
        low, high = self.sorted[:, int(0.16 * count)], self.sorted[:, int(0.84 * count)]
        self.deviation = (0.5 * (high - low)).clamp(min=1e-9)[:, None]
        self.mean = torch.zeros(width).double()
        scores = self.normal_scores(reference)
        self.mean = scores.mean(0)
        self.precision = torch.linalg.inv(scores.T.cov() + RIDGE * torch.eye(width).double())

    def normal_scores(self, statistics: Tensor) -> Tensor:
        """By rank among the references; beyond them, as far as their standard deviation says."""
        values = statistics.T.contiguous().nan_to_num(nan=1e30, posinf=1e30, neginf=-1e30)
        above = torch.searchsorted(self.sorted, values).clamp(1, self.sorted.shape[1] - 1)
        low, high = self.sorted.gather(1, above - 1), self.sorted.gather(1, above)
        share = ((values - low) / (high - low).clamp(min=1e-30)).clamp(0, 1)
        inside = torch.lerp(self.normal[above - 1], self.normal[above], share)
        beyond = values - values.clamp(self.sorted[:, :1], self.sorted[:, -1:])
        return (inside + beyond / self.deviation).T - self.mean

    def oddness(self, scores: Tensor) -> Tensor:
        """The squared Mahalanobis distance of normal scores (batch, k), (batch,)."""
        return (torch.matmul(scores, self.precision) * scores).sum(1)


def score(
    flow: Flow,
    images: Tensor,
    draws: int = 1,
    reference: Reference | Tensor | None = None,
    *,
    index: Tensor | None = None,
) -> Score:
    """How odd uint8 images (batch, C, H, W) are for a density model.

    ``reference`` are images like those that the model was trained on, but not among them, (n, C,
    H, W) or measured by `Reference.of`; those stored with the model if not given. The noise
    follows from ``index`` as in `Flow.log_prob`. Bits and maps are means over ``draws``; p-values
    are of as many draws as those of the references, whatever ``draws`` is, or they would not hold.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> usual = torch.randint(0, 17, (60, 1, 8, 8), dtype=torch.uint8)
        >>> found = score(flow, torch.zeros(2, 1, 8, 8, dtype=torch.uint8), reference=usual)
        >>> found.flagged(0.05), found.map.shape
        (tensor([True, True]), torch.Size([2, 8, 8]))
    """
    if reference is None:
        reference = Reference.stored(flow)
    elif isinstance(reference, Tensor):
        reference = Reference.of(flow, reference, draws)
    elif not isinstance(reference, Reference):
        got = type(reference).__name__  # type: ignore[unreachable]
        raise ValueError(f"reference: expected uint8 images, or a Reference; got {got}")
    statistics, nats, maps = measure(flow, images, draws, index, compared=reference.draws)
    scores = reference.fit.normal_scores(statistics)
    oddness = reference.fit.oddness(scores)
    unusual = None if maps is None else reference.standardised(maps, images.cpu())
    bits = nats / (flow.dimensions * math.log(2))
    return Score(bits, reference.p_value(oddness), oddness, scores, maps, unusual)


def _moments(values: Tensor) -> Tensor:
    """Mean and standard deviation over the first dimension, stacked; 0 and 1 of too few."""
    if len(values) < 2:
        return torch.tensor([0.0, 1.0], dtype=values.dtype)
    return torch.stack([values.mean(0), values.std(0).clamp(min=LEAST_DEVIATION)])


@torch.no_grad()
def measure(
    flow: Flow,
    images: Tensor,
    draws: int = 1,
    index: Tensor | None = None,
    progress: Progress | None = None,
    compared: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`STATISTICS` (batch, 7), − log p in nats (batch,) and its map (batch, H, W), of uint8 images.

    All are float64 on the CPU, and means over dequantization draws; those of the statistics are
    the first ``compared`` ones if that is given. The map is None if the model is not triangular.
    """
    if draws < 1:
        raise ValueError(f"at least one draw is needed; got {draws}")
    flow.check_images(images, floating=False)
    if not len(images):
        raise ValueError("expected at least one image; got none")
    places, size = torch.arange(len(images)) if index is None else index, flow.batch_size
    found: list[tuple[Tensor, ...]] = []
    for some, where in zip(images.split(size), places.split(size), strict=True):
        inputs = some.to(flow.device), where.to(flow.device)
        each = [_of_draw(flow, *inputs, draw) for draw in range(max(draws, compared or draws))]
        nats, code, maps = (torch.stack(parts).cpu() for parts in zip(*each, strict=True))
        first = slice(compared or draws)
        sizes = torch.tensor([compressed_bits(image) for image in some.cpu()])
        means = nats[:draws].mean(0), maps[:draws].mean(0), nats[first].mean(0), code[first].mean(0)
        found.append((*means, sizes))
        if progress is not None:
            progress(sum(len(part[0]) for part in found), len(images))
    total, maps, nats, code, needed = (torch.cat(parts) for parts in zip(*found, strict=True))
    bits = nats / math.log(2)
    sizes = torch.stack([bits, bits - needed], 1) / flow.dimensions
    return torch.cat([sizes, code], 1), total, maps if maps.numel() else None


def _of_draw(flow: Flow, images: Tensor, index: Tensor, draw: int) -> tuple[Tensor, ...]:
    """Nats, statistics of the code and the map for one dequantization draw."""
    x = flow.dequantize(images, 0, draw, index)
    labels = range(flow.classes) if flow.classes else [None]
    each = [_of_label(flow, x, flow.context(label, len(x))) for label in labels]
    every, codes, maps = (torch.stack(parts) for parts in zip(*each, strict=True))
    # The map of the likeliest class; what others add to the likelihood is spread evenly over it.
    best = every.argmin(0), torch.arange(len(x), device=x.device)
    nats = math.log(len(labels)) - (-every).logsumexp(0)
    rest = (nats - every[best]) / math.prod(flow.shape[1:])
    return nats, codes[best], maps[best] + rest[:, None, None]


def _of_label(flow: Flow, x: Tensor, context: Tensor | None) -> tuple[Tensor, ...]:
    net = flow.given(context)
    with true_float32():
        if has_map(net):
            y, slopes_of_pixels = flow.pixels.log_slopes(x)
            z, slopes = net.log_slopes(y)
            density = flow.base.log_prob(net.to_input_order(z).double())
            maps = -(density + slopes + slopes_of_pixels - math.log(flow.levels)).sum(1)
            nats = maps.sum((1, 2))
        else:
            z = net.value(flow.pixels.value(x))
            nats = -flow.log_density(x, context=context).double()
            maps = nats.new_empty(len(x), 0, 0)
    code = flow.base.to_normal(net.to_input_order(z).double())
    return nats, of_code(code.clamp(-FARTHEST, FARTHEST)), maps


def has_map(net: Bijection) -> bool:
    """Whether log p is a sum over pixels: all parts of the network are triangular or permute."""
    return all(type(leaf).log_slopes is not Bijection.log_slopes for leaf in net.leaves())


def of_code(u: Tensor) -> Tensor:
    """Statistics of codes (batch, C, H, W), which are white noise under the model: (batch, 5).

    log E u², E |u| / √E u², and the correlation E uv / E u² along rows, columns and channels.
    """
    square = u.square().flatten(1).mean(1).clamp(min=1e-12)
    products = u[..., 1:] * u[..., :-1], u[:, :, 1:] * u[:, :, :-1], u[:, 1:] * u[:, :-1]
    related = [product.flatten(1).sum(1) / (u[0].numel() * square) for product in products]
    return torch.stack([square.log(), u.abs().flatten(1).mean(1) / square.sqrt(), *related], 1)


def compressed_bits(image: Tensor) -> float:
    """Bits that zlib needs for a picture (C, H, W) with the best of four differences of bytes."""
    pixels, zero = image.numpy(), np.uint8(0)
    left, up = (np.diff(pixels, axis=axis, prepend=zero) for axis in (2, 1))
    both = np.diff(left, axis=1, prepend=zero)
    return 8.0 * min(len(zlib.compress(x.tobytes(), 9)) for x in (pixels, left, up, both))


def texture(images: Tensor) -> Tensor:
    """log (1 + standard deviation in 3 × 3 pixels), mean of channels: (batch, H, W)."""
    x = images.double()
    padded = F.pad(torch.cat([x, x * x]), (1, 1, 1, 1), mode="replicate")
    mean, square = F.avg_pool2d(padded, 3, 1).chunk(2)
    return (square - mean * mean).clamp(min=0).sqrt().mean(1).log1p()
