"""A density model of images as a distribution of torch.distributions."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal, Uniform, constraints
from torch.distributions.transformed_distribution import TransformedDistribution
from torch.distributions.transforms import SigmoidTransform

from mintnet.bijections import EntrywiseBijection
from mintnet.distributions.transform import BijectionTransform
from mintnet.models import Flow
from mintnet.models.noise import BASES
from mintnet.precision import true_float32
from mintnet.solvers import Solver

Shape = torch.Size | list[int] | tuple[int, ...]


class _Pixels(BijectionTransform):
    """The pixels' map, its inverse not verified: float32 is too coarse for the logit near white."""

    bijection: EntrywiseBijection

    def _solved(self, y: Tensor) -> Tensor:
        return self.bijection.invert(y)


class FlowDistribution(Distribution):
    r"""The distribution of the images of a density model.

    A value is an image of D integers v in {0, …, L − 1}, with z ~ N(0, T² I) for the temperature T.
    `log_prob` is, as that of the model, the mean over ``draws`` of uniform noise u of

        log p((v + u) / L) − D log L,

    a lower bound of log P(v) in expectation, with gradients in the weights. Samples are uint8.
    Integers have no gradients: `dequantized` is the continuous distribution with `rsample`.

    ``seed`` is that of u, as in ``flow.log_prob``; None takes new noise each time, from torch's
    global generator: what training wants.

    Examples:
        >>> import mintnet
        >>> images = FlowDistribution(mintnet.Flow.preset("digits"))
        >>> x = images.sample((2, 3))
        >>> x.shape, x.dtype, images.log_prob(x).shape
        (torch.Size([2, 3, 1, 8, 8]), torch.uint8, torch.Size([2, 3]))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

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
        if len(flow.shape) != 3:
            raise TypeError(
                "a FlowDistribution is one of images; of points, take a TransformedDistribution "
                "with BijectionTransform(mintnet.Chain(flow.pixels, flow.net)).inv"
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
        return constraints.independent(constraints.integer_interval(0, self.flow.levels - 1), 3)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> "FlowDistribution":
        new: FlowDistribution = self._get_checked_instance(FlowDistribution, _instance)  # type: ignore[no-untyped-call]
        new.__dict__.update(self.__dict__)
        old, wide = tuple(self.batch_shape), tuple(batch_shape)
        pairs = zip(reversed(old), reversed(wide), strict=False)
        if len(wide) < len(old) or any(a not in (1, b) for a, b in pairs):
            raise ValueError(f"a batch of shape {old} cannot be expanded to {wide}")
        super(FlowDistribution, new).__init__(torch.Size(wide), self.event_shape, False)
        new._validate_args = self._validate_args
        return new

    @torch.no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """New images by the verified inverse, uint8 (…, C, H, W)."""
        shape = self._extended_shape(torch.Size(sample_shape))
        if (count := shape[:-3].numel()) == 0:
            return torch.empty(shape, dtype=torch.uint8, device=self.flow.device)
        return self.flow.sample(count, self.temperature, solver=self.solver).reshape(shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        words = "take sample(), or dequantized().rsample() for pixels before they are rounded"
        raise NotImplementedError(f"integers have no reparameterized samples; {words}")

    def log_prob(self, value: Tensor) -> Tensor:
        """A lower bound of log P(v). Shape: (…, C, H, W) → (…)."""
        if self._validate_args and not (isinstance(value, Tensor) and value.numel() == 0):
            self._validate_sample(value)  # which cannot look at empty tensors
        images = self._images(value)
        leading = images.shape[:-3]
        flat = images.reshape(leading.numel(), *self.event_shape)
        shape = torch.broadcast_shapes(leading, self.batch_shape)
        seed = int(torch.randint(2**31, ())) if self.seed is None else self.seed
        with true_float32():
            pixels = (self.flow.dequantize(flat, seed, draw) for draw in range(self.draws))
            bounds = [self.flow.log_density(x, self._tempered) for x in pixels]
        return torch.stack(bounds).mean(0).reshape(leading).expand(shape)

    def dequantized(self) -> TransformedDistribution:
        """The density of the pixels x = (v + u) / L before they are rounded, with `rsample`.

        Its log_prob is exact: ``flow.log_density(x)`` + D log L for temperature 1. Its support is
        the domain of the logit, the unit cube with a margin of λ / (1 − 2λ).
        """
        flow, shape = self.flow, self.flow.net.output_shape or self.flow.shape
        zero = torch.zeros(*self.batch_shape, *shape, dtype=flow.dtype, device=flow.device)
        entry: Distribution = Normal(zero, self.temperature)
        if flow.base_name == "logistic":
            if self.temperature != 1:
                raise ValueError("dequantized pixels of this model have temperature 1 alone")
            entry = TransformedDistribution(Uniform(zero, zero + 1), [SigmoidTransform().inv])
        base = Independent(entry, len(shape))
        ways = [BijectionTransform(flow.net, solver=self.solver).inv, _Pixels(flow.pixels).inv]
        return TransformedDistribution(base, ways, validate_args=self._validate_args)

    def _tempered(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """z at temperature T: u / T in the place of its normal code u; N(u; 0, T²) = N(u/T) / T."""
        z, log_det = self.flow.net.transform(y)
        if self.temperature == 1:
            return z, log_det
        base, normal = self.flow.base, BASES["normal"]
        u = base.to_normal(z)
        cool = base.from_normal(u / self.temperature)
        change = base.log_prob(z) - base.log_prob(cool) - math.log(self.temperature)
        change = change + normal.log_prob(u / self.temperature) - normal.log_prob(u)
        return cool, log_det + change.flatten(1).sum(1)

    def _images(self, value: Tensor) -> Tensor:
        """uint8 images from integers of any dtype; raises for anything else."""
        if not isinstance(value, Tensor) or value.shape[-3:] != self.event_shape:
            kind = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            shape = ", ".join(map(str, self.event_shape))
            raise ValueError(f"expected images of shape (*batch, {shape}); got {kind}")
        images = value.clamp(0, self.flow.levels - 1).to(torch.uint8)
        if not bool((images == value).all()):
            got = f"{value.dtype} from {float(value.min()):g} to {float(value.max()):g}"
            words = f"whole numbers from 0 to {self.flow.levels - 1}; not all are such in {got}"
            raise ValueError(f"expected {words}. Pixels in (0, 1) belong to dequantized().")
        return images

    def __repr__(self) -> str:
        batch = f", batch_shape={tuple(self.batch_shape)}" if self.batch_shape else ""
        levels, heat = f"levels={self.flow.levels}", f"temperature={self.temperature}"
        return f"FlowDistribution({self.flow.shape}, {levels}, {heat}{batch})"
