"""Density models of points: real numbers in, exact log-densities out, and back."""

import math
from dataclasses import asdict
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from mintnet.flows import EntryScaling
from mintnet.graphs import is_capturing
from mintnet.models.base import Model
from mintnet.models.deep import DeepConfig, DeepNet
from mintnet.models.flow import Flow

VECTOR = {"net": DeepConfig, "base": Literal["normal", "logistic"]}


class VectorFlow(Flow):
    r"""A density of vectors x of D real numbers: no grey levels, no dequantization noise.

    .. code-block:: text

        y = exp(s) ⊙ (x + b),   z = net(y),   log p(x) = log q(z) + log |det ∂z/∂x|

    The network has mixture layers on D = ``dimensions`` numbers, lower and upper in turns, with
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
        if not isinstance(images, Tensor) or images.shape[1:] != self.shape:
            got = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            points = f"a tensor of points, (batch, {self.dimensions})"
            raise ValueError(f"VectorFlow takes {points}; got {got}")
        if images.dtype != self.dtype:
            points = f"points in {self.dtype} like its weights"
            raise ValueError(f"VectorFlow takes {points}; got {images.dtype}")
        if not is_capturing(images) and not bool(images.isfinite().all()):
            raise ValueError("VectorFlow takes finite numbers; some are NaN or infinite")

    def score(self, *_: Any, **__: Any) -> Any:
        raise ValueError("score and restore are for models of images; of points take log_prob")

    restore = keep_scores = score

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "net": asdict(self.net.config), "base": self.base_name}

    @classmethod
    def from_description(cls, config: dict[str, Any]) -> Self:
        net = config["net"]
        sizes = net.shape, net.layers, net.filters, net.blocks, net.components
        dimensions, layers, filters, blocks, components = (size for (size,) in sizes)
        form = layers, filters, blocks, components, net.classes
        return cls(dimensions, *form, base=config["base"])


class TableModel(Model):
    r"""The mean of the densities of several flows, each with the columns in an order of its own:

    .. code-block:: text

        p(x) = 1/M Σₘ pₘ(x[orderₘ])

    It is a mixture: to sample, a flow is drawn, then a point of it.

    Examples:
        >>> model = TableModel(["height", "weight"], [VectorFlow(2), VectorFlow(2)]).eval()
        >>> model.log_prob(torch.zeros(4, 2)).shape
        torch.Size([4])
    """

    kind = "table"
    schema: ClassVar[Any] = {"columns": tuple[str, ...], "flows": tuple[VECTOR, ...]}  # type: ignore[valid-type]
    orders: Tensor
    held_out = math.nan  # nats a row that a flow had not seen, the mean over the flows

    def __init__(self, columns: list[str], flows: list[VectorFlow]) -> None:
        super().__init__((len(columns),), 256)  # type: ignore[arg-type]
        self.columns, self.flows = columns, nn.ModuleList(flows)
        order = torch.arange(len(columns)).expand(len(flows), -1)
        self.register_buffer("orders", order.clone())

    @torch.no_grad()
    def log_prob(self, x: Tensor) -> Tensor:
        """Nats of rows (batch, D), (batch,)."""
        pairs = zip(self.flows, self.orders, strict=True)
        each = [flow.log_prob(x[:, order]) for flow, order in pairs]  # type: ignore[operator]
        return torch.stack(each).logsumexp(0) - math.log(len(each))

    @torch.no_grad()
    def sample(self, count: int, seed: int = 0) -> Tensor:
        """New rows, (count, D)."""
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randint(len(self.flows), (count,), generator=generator)
        rows = torch.empty(count, *self.shape, dtype=self.dtype, device=self.device)
        for number, flow in enumerate(self.flows):
            if len(mine := (chosen == number).nonzero().flatten()):
                found = flow.sample(len(mine), seed=seed + number)  # type: ignore[operator]
                rows[mine[:, None], self.orders[number]] = found
        return rows

    def describe(self) -> dict[str, Any]:
        flows = [flow.describe() for flow in self.flows]  # type: ignore[operator]
        return {"kind": self.kind, "columns": self.columns, "flows": flows}

    @classmethod
    def from_description(cls, config: dict[str, Any]) -> Self:
        flows = [VectorFlow.from_description(each) for each in config["flows"]]
        return cls(list(config["columns"]), flows)

    @classmethod
    def least_weights(cls, config: dict[str, Any]) -> int:
        return sum(each["net"].least_weights() for each in config["flows"])
