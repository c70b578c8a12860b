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

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mintnet.analysis.measure import STATISTICS, measure, texture
from mintnet.models import Flow
from mintnet.models.batches import Progress
from mintnet.models.storage import FEWEST

MOST = 2000  # reference images
FOLDS = 10
BINS = 16  # of texture
RIDGE = 1e-3  # on the covariance, for statistics that are nearly the same
LEAST_DEVIATION = 0.05  # nats: where references are all alike, smaller differences are none


@dataclass(frozen=True)
class Score:
    """What `score` finds about each picture.

    Attributes:
        bits: per dimension, the mean over the dequantization draws, (batch,).
        p_value: the share of pictures like the references that are at least as odd, (batch,).
        oddness: which also orders pictures that are odder than all references, (batch,).
        statistics: `STATISTICS`, made standard normal by the references, (batch, 7).
        map: nats of each pixel, (batch, H, W), which sum to − log p; None if the model is not
            triangular, since log p is then no sum over pixels.
        unusual: the map in standard deviations of the references' nats at the same position and
            with the same texture, (batch, H, W), or None.
    """

    bits: Tensor
    p_value: Tensor
    oddness: Tensor
    statistics: Tensor
    map: Tensor | None
    unusual: Tensor | None

    def flagged(self, rate: float = 0.01) -> Tensor:
        """Whether each picture is odd, (batch,), if that rate of false alarms is accepted."""
        return self.p_value <= rate

    @property
    def reasons(self) -> list[str]:
        """For each picture the name of the statistic that is farthest from the references'."""
        names = list(STATISTICS)
        return [names[k] for k in self.statistics.abs().argmax(1).tolist()]


@dataclass(frozen=True)
class Reference:
    """The scores of reference images, and how other pictures compare with them.

    Attributes:
        statistics: (n, 7).
        edges: between bins of texture, (bins − 1,).
        texture: mean and standard deviation of the nats in each bin, (2, bins).
        position: mean and standard deviation, at each pixel, of nats that are standardised by
            their texture, (2, H, W).
    """

    statistics: Tensor
    edges: Tensor | None = None
    texture: Tensor | None = None
    position: Tensor | None = None

    @classmethod
    def of(
        cls, flow: Flow, images: Tensor, draws: int = 1, progress: Progress | None = None
    ) -> Reference:
        """Measure reference images (n, C, H, W); of more than 2,000, an even choice."""
        if len(images) < FEWEST:
            raise ValueError(f"expected at least {FEWEST} reference images; got {len(images)}")
        images = images[torch.linspace(0, len(images) - 1, min(len(images), MOST)).long()]
        statistics, _, maps = measure(flow, images, draws, None, progress)
        if maps is None:
            return cls(statistics.float())
        rough, shares = texture(images.cpu()), torch.arange(1, BINS, dtype=torch.float64) / BINS
        edges = rough.flatten()[:: 1 + rough.numel() // 10**6].quantile(shares).unique()
        bins = torch.bucketize(rough, edges)
        by_bin = torch.stack([_moments(maps[bins == k]) for k in range(len(edges) + 1)], 1)
        mean, deviation = by_bin[:, bins]
        position = _moments((maps - mean) / deviation)
        return cls(*(tensor.float() for tensor in (statistics, edges, by_bin, position)))

    @classmethod
    def stored(cls, flow: Flow) -> Reference:
        """The reference scores that are stored with a model."""
        if flow.scores is None:
            raise ValueError(
                "this model has no reference scores; give images like those that it was trained "
                "on, but not among them, as the reference (--reference DIR of the command)"
            )
        if flow.scores.get("statistics", torch.empty(0)).shape[1:] != (len(STATISTICS),):
            raise ValueError("the scores stored with this model are those of another version")
        return cls(**flow.scores)

    def tensors(self) -> dict[str, Tensor]:
        """What is stored with a model."""
        names = "statistics", "edges", "texture", "position"
        return {name: vars(self)[name] for name in names if vars(self)[name] is not None}

    @cached_property
    def fit(self) -> Fit:
        """By all references."""
        return Fit(self.statistics.double())

    @cached_property
    def oddness(self) -> Tensor:
        """Of each reference by those of the other folds, sorted, (n,)."""
        statistics, parts = self.statistics.double(), []
        fold = torch.arange(len(statistics)) % FOLDS
        for k in range(FOLDS):
            fit = Fit(statistics[fold != k])
            parts.append(fit.oddness(fit.normal_scores(statistics[fold == k])))
        return torch.cat(parts).sort().values

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
        found: Tensor = ((nats - mean) / deviation - shift) / spread
        return found


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
    follows from ``index`` as in `Flow.log_prob`.

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
    statistics, nats, maps = measure(flow, images, draws, index)
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
