"""Density models of points: real numbers in, exact log-densities out, and back."""

import math
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor, nn

from mintnet.bijections.base import EntrywiseBijection, check_input
from mintnet.flows import EntryScaling
from mintnet.models.base import Model
from mintnet.models.deep import DeepConfig, DeepNet
from mintnet.models.flow import Flow

VECTOR = {"net": DeepConfig, "base": Literal["normal", "logistic"]}


class VectorFlow(Flow):
    r"""A density of vectors x of D real numbers: no grey levels, no dequantization noise.

        y = exp(s) ⊙ (x + b),   z = net(y),   log p(x) = log q(z) + log |det ∂z/∂x|

    The network has mixture layers on D = ``dimensions`` numbers, alternately lower and upper, with
    D · ``filters`` hidden units, and depends on one of ``classes`` labels if there are any.
    `log_prob` is exact; `sample` and `decode` give real numbers, each the verified inverse of its
    z, whose distribution is ``base``, logistic or normal. Shapes: (batch, D) → (batch,).

    Examples:
        >>> flow = VectorFlow(2)
        >>> x = 100 + 5 * torch.randn(50, 2)
        >>> flow.initialize(x)
        >>> flow.log_prob(x).shape, flow.sample(3).shape
        (torch.Size([50]), torch.Size([3, 2]))
    """

    kind = "vector-flow"
    schema = VECTOR
    net: DeepNet
    pixels: EntryScaling

    def __init__(
        self,
        dimensions: int,
        layers: int = 2,
        filters: int = 16,
        blocks: int = 1,
        components: int = 6,
        classes: int = 0,
        base: str = "logistic",
    ) -> None:
        sizes = (layers,), (filters,), (blocks,), (components,)
        super().__init__(DeepConfig((dimensions,), *sizes, classes), None, base=base)
        self.levels = 1  # no bins: D log L = 0
        self.pixels = EntryScaling((dimensions,))

    @torch.no_grad()
    def initialize(self, x: Tensor, labels: Tensor | None = None) -> None:
        """Begin near the best Gaussian of points (batch, D): scales, then linear predictions."""
        self.check_images(x)
        self.pixels.set_from(x)
        self.net.initialize(self.pixels.value(x), self.context(labels, len(x)))

    def dequantize(
        self, images: Tensor, seed: int | None = 0, draw: int = 0, index: Tensor | None = None
    ) -> Tensor:
        self.check_images(images)
        return images

    def to_images(self, y: Tensor) -> Tensor:
        return self.pixels.invert(y)

    def check_images(self, images: Tensor, floating: bool = True) -> None:
        """Raise unless these are finite points in the precision of the weights."""
        if isinstance(images, Tensor):
            self.net.check_dtype(images)
        check_input(images, self.shape, "VectorFlow")

    def score(self, *_: Any, **__: Any) -> Any:
        raise ValueError("score and restore are for models of images; of points take log_prob")

    restore = keep_scores = score

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "net": asdict(self.net.config), "base": self.base_name}

    @classmethod
    def from_description(cls, config: dict[str, Any]) -> Self:
        net = config["net"]
        each = net.shape, net.layers, net.filters, net.blocks, net.components
        dimensions, layers, filters, blocks, components = (size for (size,) in each)
        return cls(dimensions, layers, filters, blocks, components, net.classes, config["base"])


class Columns(EntrywiseBijection):
    r"""Each column of a table by itself: scaled, or through the histogram of its rows,

        y = (x − low) / width,     or     y = logit P(x)

    with P linear in bins of one width, ``most`` at most. On either side of them y goes on with the
    slope 1 / width. Shapes: (batch, ``columns``).
    """

    low: Tensor
    width: Tensor
    bins: Tensor
    ends: Tensor

    def __init__(self, columns: int, most: int = 1) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(columns))
        self.register_buffer("width", torch.ones(columns))
        self.register_buffer("bins", torch.zeros(columns).long())  # 0: scaled
        self.register_buffer("ends", torch.full((columns, most + 1), 0.5).cumsum(1))  # P there

    @classmethod
    def fitted(cls, x: Tensor, bins: Tensor) -> Self:
        """The map of rows (n, D); ``bins``, (D,), hold half a row more, the sides one more each."""
        self = cls(len(bins), max(1, int(bins.max()))).to(x.dtype)
        (low, high), place = x.aminmax(dim=0), torch.arange(self.ends.shape[1]).to(x)
        width = (1 + 2e-6) * (high - low).clamp(min=1e-300) / bins
        self.low.copy_(torch.where(bins > 0, low - 1e-6 * (high - low), x.mean(0)))
        self.width.copy_(torch.where(bins > 0, width, x.std(0, correction=0)))
        rows = ((x - self.low) / self.width).T.contiguous().sort().values
        below = torch.searchsorted(rows, place.repeat(len(bins), 1))
        self.ends.copy_((1 + below + place / 2) / (2 + len(x) + bins[:, None] / 2))
        self.bins.copy_(bins)
        return self

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u = (x - self.low) / self.width
        inside = u.clamp(min=0).minimum(self.bins)
        level, below, share = self._bin(inside.long())
        p = below + (inside - level) * share
        slope = (share / (p * (1 - p))).log().where((u == inside) & (self.bins > 0), 0.0)
        return p.logit() + u - inside, slope - self.width.log()

    def invert(self, z: Tensor) -> Tensor:
        last = self.ends.gather(1, self.bins[:, None])[:, 0]
        inside = z.maximum(self.ends[:, 0].logit()).minimum(last.logit())
        p = torch.sigmoid(inside)
        level = torch.searchsorted(self.ends, p.T.contiguous(), right=True).T - 1
        level, below, share = self._bin(level)
        return self.low + self.width * (level + (p - below) / share + z - inside)

    def _bin(self, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A bin that the column has, P where it begins, and what it holds."""
        level = level.minimum(self.bins - 1).clamp(min=0)
        below, above = (self.ends.gather(1, level.T + more).T for more in (0, 1))
        return level, below, above - below


def gaussian_log_prob(log_weights: Tensor, means: Tensor, factors: Tensor, x: Tensor) -> Tensor:
    """log wₖ N(x; mₖ, Lₖ Lₖᵀ): rows (..., n, D), K Gaussians (..., K, D, D) → (..., n, K)."""
    apart = (x.unsqueeze(-3) - means.unsqueeze(-2)).mT
    z: Tensor = torch.linalg.solve_triangular(factors, apart, upper=False)
    volume = factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    total = log_weights - volume - 0.5 * x.shape[-1] * math.log(2 * math.pi)
    return (total.unsqueeze(-1) - 0.5 * z.square().sum(-2)).mT


class TableModel(Model):
    r"""A mixture of several flows, each with the columns in an order of its own, and of Gaussians:

        p(y) = Σₘ wₘ pₘ(y[orderₘ]) + Σₖ wₖ N(y; mₖ, Lₖ Lₖᵀ),     y = `Columns` (x)

    To sample, a flow or Gaussian is drawn, then a point of it. There are K = ``gaussians``.

    Examples:
        >>> model = TableModel(["height", "weight"], [VectorFlow(2), VectorFlow(2)]).eval()
        >>> model.log_prob(torch.zeros(4, 2)).shape
        torch.Size([4])
    """

    kind = "table"
    schema: ClassVar[Any] = {
        **{"columns": tuple[str, ...], "flows": tuple[VECTOR, ...]},  # type: ignore[valid-type]
        **{"bins": Annotated[int, (1, 2**16)], "gaussians": Annotated[int, (0, 2**16)]},
    }
    orders: Tensor
    log_weights: Tensor
    means: Tensor
    factors: Tensor
    held_out = math.nan  # nats a row that the members had not seen

    def __init__(
        self, columns: list[str], flows: list[VectorFlow], bins: int = 1, gaussians: int = 0
    ) -> None:
        super().__init__((width := len(columns),), 256)  # type: ignore[arg-type]
        self.columns, self.flows, self.bins = columns, nn.ModuleList(flows), bins
        self.marginals, total = Columns(width, bins), len(flows) + gaussians
        self.register_buffer("orders", torch.arange(width).repeat(len(flows), 1))
        self.register_buffer("log_weights", torch.full((total,), -math.log(total)))
        self.register_buffer("means", torch.zeros(gaussians, width))
        self.register_buffer("factors", torch.eye(width).repeat(gaussians, 1, 1))
        self.to(dtype=flows[0].dtype if flows else None)

    @torch.no_grad()
    def log_prob(self, x: Tensor) -> Tensor:
        """Nats of rows (batch, D), (batch,)."""
        y, slopes = self.marginals.log_slopes(x)
        pairs = zip(self.flows, self.orders, strict=True)
        each = [flow.log_prob(y[:, order]) for flow, order in pairs]  # type: ignore[operator]
        gaussians = partial(gaussian_log_prob, torch.zeros(()).to(y), self.means, self.factors)
        likely = [torch.stack(each, 1), torch.cat([gaussians(part) for part in y.split(256)])]
        return (torch.cat(likely, 1) + self.log_weights).logsumexp(1) + slopes.sum(1)

    @torch.no_grad()
    def sample(self, count: int, seed: int = 0) -> Tensor:
        """New rows, (count, D)."""
        generator = torch.Generator().manual_seed(seed)
        chosen = self.log_weights.exp().cpu().multinomial(count, True, generator=generator)
        rows = torch.randn(count, *self.shape, generator=generator).to(self.means)
        for number in chosen.unique().tolist():
            mine = (chosen == number).nonzero().flatten()
            if (k := number - len(self.flows)) >= 0:
                rows[mine] = self.means[k] + rows[mine] @ self.factors[k].T
            else:
                found = cast(VectorFlow, self.flows[number]).sample(len(mine), seed=seed + number)
                rows[mine[:, None], self.orders[number]] = found
        return self.marginals.invert(rows)

    def describe(self) -> dict[str, Any]:
        flows = [flow.describe() for flow in self.flows]  # type: ignore[operator]
        sizes = {"bins": self.bins, "gaussians": len(self.means)}
        return {"kind": self.kind, "columns": self.columns, "flows": flows, **sizes}

    @classmethod
    def from_description(cls, config: dict[str, Any]) -> Self:
        flows = [VectorFlow.from_description(each) for each in config["flows"]]
        return cls(list(config["columns"]), flows, config["bins"], config["gaussians"])

    @classmethod
    def least_weights(cls, config: dict[str, Any]) -> int:
        flows = sum(each["net"].least_weights() for each in config["flows"])
        return int(flows + config["gaussians"] * len(config["columns"]) ** 2)
