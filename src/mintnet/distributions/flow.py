r"""A density model of images as a distribution of torch.distributions.

An image holds D integers v in {0, …, L − 1}. With z ~ N(0, T² I) for the temperature T, the model
has a density p over dequantized pixels x = (v + u) / L, see `mintnet.models.flow`, and by Jensen's
inequality

    log P(v) ≥ E_u [ log p((v + u) / L) ] − D log L,    u uniform in (0, 1)^D.

`FlowDistribution.log_prob` is the mean of the right-hand side over some draws of u: a lower bound
of log P(v) in expectation, and not log P(v) itself, which has no formula.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    Normal,
    Transform,
    TransformedDistribution,
    constraints,
)

from mintnet.distributions.transform import BijectionTransform
from mintnet.models import Flow
from mintnet.precision import true_float32
from mintnet.solvers import Solver


class FlowDistribution(Distribution):
    r"""The distribution of the images of a density model.

    A value is an image of integers 0 to L − 1; samples are uint8, and `log_prob` takes any dtype
    that holds such integers exactly. Nothing can be differentiated through integers, so there is
    no `rsample`; `dequantized` is the continuous distribution that has one.

    `log_prob` is in nats, with gradients in the weights. Its noise is a function of ``seed``, of
    the draw and of an image's place in the batch, as in ``flow.log_prob``.

    Args:
        flow: the model; its weights are used as they are when a method is called.
        temperature: T, for samples and likelihood alike.
        draws: of noise for each image; `log_prob` is their mean.
        seed: of the noise. None takes new noise each time, from torch's global generator: what
            training wants.
        solver: for the inverse; `Auto` if not given.
        validate_args: as everywhere in torch.distributions. Values that are no images of this
            model raise in any case.

    Shapes: batch_shape is () until it is expanded, event_shape is (C, H, W).

    Examples:
        >>> import mintnet
        >>> images = FlowDistribution(mintnet.Flow.preset("digits"))
        >>> x = images.sample((2, 3))
        >>> x.shape, x.dtype, images.log_prob(x).shape
        (torch.Size([2, 3, 1, 8, 8]), torch.uint8, torch.Size([2, 3]))
        >>> images
        FlowDistribution((1, 8, 8), levels=17, temperature=1.0)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = False

    def __init__(
        self,
        flow: Flow,
        temperature: float = 1.0,
        draws: int = 1,
        seed: int | None = 0,
        solver: Solver | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(flow, Flow):
            raise TypeError(
                f"a FlowDistribution takes a mintnet.Flow; got {type(flow).__name__}. Bijections "
                "go into a BijectionTransform."
            )
        if not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be a positive number; got {temperature!r}")
        if not isinstance(draws, int) or draws < 1:
            raise ValueError(f"draws of noise are counted from 1 on; got draws={draws!r}")
        self.flow, self.temperature, self.draws = flow, float(temperature), draws
        self.seed, self.solver = seed, solver
        super().__init__(torch.Size(), torch.Size(flow.shape), validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=3)
    def support(self) -> constraints.Constraint:
        """Integers from 0 to L − 1."""
        return constraints.independent(constraints.integer_interval(0, self.flow.levels - 1), 3)

    def expand(
        self, batch_shape: torch.Size | list[int] | tuple[int, ...], _instance: Any = None
    ) -> FlowDistribution:
        """Independent images in a batch of that shape, from the same model."""
        new: FlowDistribution = self._get_checked_instance(FlowDistribution, _instance)  # type: ignore[no-untyped-call]
        new.flow, new.temperature, new.draws = self.flow, self.temperature, self.draws
        new.seed, new.solver = self.seed, self.solver
        batch_shape = torch.Size(batch_shape)
        pairs = zip(reversed(self.batch_shape), reversed(batch_shape), strict=False)
        if len(batch_shape) < len(self.batch_shape) or any(a not in (1, b) for a, b in pairs):
            raise ValueError(
                f"a batch of shape {tuple(self.batch_shape)} cannot be expanded to "
                f"{tuple(batch_shape)}"
            )
        super(FlowDistribution, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Tensor:
        """New images by the verified inverse, uint8 (…, C, H, W)."""
        shape = self._extended_shape(torch.Size(sample_shape))
        count = shape[: len(shape) - len(self.event_shape)].numel()
        if count == 0:
            return torch.empty(shape, dtype=torch.uint8, device=self.flow.device)
        return self.flow.sample(count, self.temperature, solver=self.solver).reshape(shape)

    def rsample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Tensor:
        """Not available: pixels are integers."""
        raise NotImplementedError(
            "images of integers have no reparameterized samples; take sample(), or "
            "dequantized().rsample() for the pixels before they are rounded"
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """A lower bound of log P(v) in expectation over the noise, in nats: see the class.

        Shape: (…, C, H, W) → (…), broadcast with batch_shape.
        """
        if self._validate_args and not (isinstance(value, Tensor) and value.numel() == 0):
            self._validate_sample(value)  # which cannot look at empty tensors
        images = self._images(value)
        leading = images.shape[: images.dim() - len(self.event_shape)]
        shape = torch.broadcast_shapes(leading, self.batch_shape)
        if not leading.numel():
            return torch.zeros(shape, dtype=self.flow.dtype, device=self.flow.device)
        flat = images.reshape(-1, *self.event_shape)
        seed = int(torch.randint(2**31, ())) if self.seed is None else self.seed
        bounds = [self._bound(flat, seed, draw) for draw in range(self.draws)]
        return torch.stack(bounds).mean(0).reshape(leading).expand(shape)

    def dequantized(self) -> TransformedDistribution:
        """The density of the pixels x = (v + u) / L before they are rounded, with `rsample`.

        Its log_prob is exact: ``flow.log_density(x)`` + D log L for temperature 1. Its support is
        the domain of the logit, the unit cube with a margin of λ / (1 − 2λ).

        Examples:
            >>> import mintnet
            >>> pixels = FlowDistribution(mintnet.Flow.preset("digits")).dequantized()
            >>> pixels.rsample((2,)).requires_grad
            True
        """
        flow, shape = self.flow, self.flow.net.output_shape or self.flow.shape
        zero = torch.zeros(*self.batch_shape, *shape, dtype=flow.dtype, device=flow.device)
        base = Independent(Normal(zero, self.temperature), len(shape))
        # Two residual checks: one of both would blame the net for the rounding of white pixels.
        ways: list[Transform] = [
            BijectionTransform(flow.net, solver=self.solver).inv,
            BijectionTransform(flow.logit).inv,
        ]
        return TransformedDistribution(base, ways, validate_args=self._validate_args)

    def _bound(self, images: Tensor, seed: int, draw: int) -> Tensor:
        flow = self.flow
        with true_float32():
            return flow.log_density(flow.dequantize(images, seed, draw), self._tempered)

    def _tempered(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """z / T in the place of z: N(z; 0, T²) = N(z / T; 0, 1) / T for each entry."""
        z, log_det = self.flow.net.transform(y)
        if self.temperature == 1.0:
            return z, log_det
        return z / self.temperature, log_det - self.flow.dimensions * math.log(self.temperature)

    def _images(self, value: Tensor) -> Tensor:
        """uint8 images from integers of any dtype; raises for anything else."""
        shape = tuple(self.event_shape)
        if not isinstance(value, Tensor) or tuple(value.shape[-len(shape) :]) != shape:
            kind = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"expected images of shape (*batch, {', '.join(map(str, shape))}); got {kind}"
            )
        if value.dtype == torch.uint8:
            return value
        images = value.clamp(0, self.flow.levels - 1).to(torch.uint8)
        if not bool((images == value).all()):
            raise ValueError(
                f"expected whole numbers from 0 to {self.flow.levels - 1}; got {value.dtype} from "
                f"{float(value.min()):g} to {float(value.max()):g}, not all of them such numbers. "
                "Pixels in (0, 1) belong to dequantized()."
            )
        return images

    def __repr__(self) -> str:
        text = f"{self.flow.shape}, levels={self.flow.levels}, temperature={self.temperature}"
        if self.batch_shape:
            text += f", batch_shape={tuple(self.batch_shape)}"
        return f"FlowDistribution({text})"
