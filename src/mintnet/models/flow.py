r"""Density models of images: pixels in, exact likelihood out, and back.

An image holds D integers v in {0, …, L − 1}. With uniform noise u in (0, 1),

    x = (v + u) / L                       in the unit cube,
    y = logit(λ + (1 − 2λ) x) − c         on the real line,
    z = net(y),
    log p(x) = log N(z; 0, I) + log |det ∂z/∂y| + log |det ∂y/∂x|.

P(v) = ∫ p over a cube of volume L^−D, so log P(v) ≥ E_u [ log p(x) ] − D log L by Jensen's
inequality: `log_prob` is that for one draw of u; bits per dimension are − log_prob / (D log 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Self

import torch
from torch import Tensor

from mintnet.bijections import Logit, TriangularBijection
from mintnet.bijections.base import check_solver
from mintnet.models.base import Model, choose
from mintnet.models.batches import Progress, Reporting, join_solutions
from mintnet.models.mintnet import PRESETS, MintNet, MintNetConfig
from mintnet.models.noise import uniform_noise
from mintnet.precision import true_float32
from mintnet.solvers import REMEDY, Auto, Solution, Solver

Function = Callable[[Tensor], Tensor]
Transform = Callable[[Tensor], tuple[Tensor, Tensor]]

LAMBDAS = {"digits": 0.01, "mnist": 1e-6, "cifar10": 0.05, "imagenet32": 0.05}
LEVELS = {"digits": 17}
HIDDEN_ENTRIES = 2**25
"""Entries in the widest hidden layer of one internal batch at most: 128 MiB in float32."""


class Flow(Model):
    """Dequantization, the logit (λ = ``lam``, c = ``centre``), a MintNet, a standard normal.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> images = torch.randint(0, 17, (4, 1, 8, 8), dtype=torch.uint8)
        >>> flow.bits_per_dim(images).shape
        torch.Size([4])
        >>> bool((flow.decode(flow.encode(images)) == images).all())
        True
    """

    kind = "flow"

    def __init__(
        self, config: MintNetConfig, lam: float = 0.05, levels: int = 256, centre: float = 0.0
    ) -> None:
        super().__init__(config.shape, levels)
        self.net = MintNet(config)
        self.logit = Logit(lam, centre)

    @staticmethod
    def preset(name: str) -> Flow:
        """The paper's model for digits, mnist, cifar10 or imagenet32, with fresh weights."""
        name = choose(name, PRESETS)
        return Flow(PRESETS[name], LAMBDAS[name], LEVELS.get(name, 256))

    @property
    def dimensions(self) -> int:
        """D = C · H · W."""
        return math.prod(self.shape)

    @property
    def batch_size(self) -> int:
        """How many images are computed at once, so that the memory for hidden layers is bounded."""
        widest = max(layer.filters * math.prod(layer.event_shape) for layer in self.net.layers())
        return max(1, HIDDEN_ENTRIES // widest)

    def log_prob(
        self, images: Tensor, seed: int = 0, draw: int = 0, index: Tensor | None = None
    ) -> Tensor:
        """Nats of uint8 images, (batch,), for one dequantization draw.

        ``seed``, ``draw`` and the images' places in their data set, ``index``, fix the noise.
        """
        return self._of_draw(self.log_density, images, seed, draw, index)

    def log_prob_map(
        self, images: Tensor, seed: int = 0, draw: int = 0, index: Tensor | None = None
    ) -> Tensor:
        """Nats of each entry of the images, (batch, C, H, W), which sum to `log_prob`."""

        def entries(x: Tensor) -> Tensor:
            y, slopes_of_logit = self.logit.log_slopes(x)
            z, slopes = self.net.log_slopes(y)
            z = self.net.to_input_order(z)
            normal = -0.5 * (z * z + math.log(2 * math.pi))
            return normal + slopes + slopes_of_logit - math.log(self.levels)

        return self._of_draw(entries, images, seed, draw, index)

    def dequantize(
        self, images: Tensor, seed: int = 0, draw: int = 0, index: Tensor | None = None
    ) -> Tensor:
        """x = (v + u) / L in (0, 1) for uint8 images v, with the noise u of `log_prob`."""
        self.check_images(images, floating=False)
        if index is None:
            index = torch.arange(len(images), device=images.device)
        noise = uniform_noise(seed, draw, index, self.shape, self.dtype)
        return (images.to(self.dtype) + noise) / self.levels

    def log_density(self, x: Tensor, transform: Transform | None = None) -> Tensor:
        """log p(x) − D log L of x in (0, 1), (batch,), by the net's transform or this one."""
        y, log_det_logit = self.logit.transform(x)
        z, log_det = (transform or self.net.transform)(y)
        bins = self.dimensions * math.log(self.levels)
        return standard_normal_log_prob(z) + log_det + log_det_logit - bins

    def bits_per_dim(
        self, images: Tensor, seed: int = 0, draw: int = 0, index: Tensor | None = None
    ) -> Tensor:
        """− log_prob / (D log 2). Shape: (batch,)."""
        return -self.log_prob(images, seed, draw, index) / (self.dimensions * math.log(2))

    def encode(self, images: Tensor) -> Tensor:
        """z of the centres of the images' bins."""
        self.check_images(images, floating=False)
        centres = (images.to(self.dtype) + 0.5) / self.levels
        with true_float32():
            return self._batched(lambda x: self.net(self.logit.transform(x)[0])[0], centres)

    @torch.no_grad()
    def decode(
        self,
        z: Tensor,
        solver: Solver | None = None,
        *,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """The uint8 images with these z; raises `InversionError` unless all are verified.

        Samples are solved in batches of ``batch_size``; ``progress`` is called with the number of
        layers solved so far and in all, those of each batch counted.
        """
        batches = self._solved(z, solver, batch_size, progress)
        return torch.cat([self.to_images(solution.require(REMEDY)) for solution in batches])

    @torch.no_grad()
    def solve(
        self,
        z: Tensor,
        solver: Solver | None = None,
        *,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Solution:
        """The inverse of the net alone: pixels after the logit, verified or not, a `Solution`."""
        return join_solutions(list(self._solved(z, solver, batch_size, progress)))

    def to_images(self, y: Tensor) -> Tensor:
        """uint8 images from pixels after the logit."""
        levels = (self.logit.invert(y) * self.levels).floor()
        return levels.clamp(0, self.levels - 1).to(torch.uint8)

    def sample(
        self,
        count: int,
        temperature: float = 1.0,
        seed: int | None = None,
        solver: Solver | None = None,
        *,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """New images, uint8 (count, C, H, W): z ~ N(0, temperature²) through the inverse."""
        z = self.sample_latents(count, temperature, seed)
        return self.decode(z, solver, batch_size=batch_size, progress=progress)

    def sample_latents(
        self, count: int, temperature: float = 1.0, seed: int | None = None
    ) -> Tensor:
        """z ~ N(0, temperature²) of the net's output shape, drawn on the CPU."""
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be positive; got {temperature}")
        if count < 1:
            raise ValueError(f"at least one sample can be drawn; got {count}")
        if seed is not None and not -(2**63) <= seed < 2**64:
            raise ValueError(f"a seed is a whole number of at most 64 bits; got {seed}")
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        shape = self.net.output_shape or self.shape
        z = torch.randn(count, *shape, generator=generator) * temperature
        return z.to(self.device, self.dtype)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "net": self.net.config.to_dict(),
            "logit_lambda": self.logit.lam,
            "levels": self.levels,
            **({"centre": self.logit.centre} if self.logit.centre else {}),
        }

    @classmethod
    def from_description(cls, config: dict[str, Any]) -> Self:
        net, centre = MintNetConfig(**config["net"]), float(config.get("centre", 0.0))
        return cls(net, float(config["logit_lambda"]), int(config["levels"]), centre)

    def _of_draw(
        self, function: Function, images: Tensor, seed: int, draw: int, index: Tensor | None
    ) -> Tensor:
        """``function`` of the dequantized images, batch by batch."""
        self.check_images(images, floating=False)
        places = torch.arange(len(images), device=images.device) if index is None else index

        def one_batch(images: Tensor, places: Tensor) -> Tensor:
            return function(self.dequantize(images, seed, draw, places))

        with true_float32():
            return self._batched(one_batch, images, places)

    def _batched(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """``function`` of the inputs, batch by batch."""
        batches = zip(*(tensor.split(self.batch_size) for tensor in inputs), strict=True)
        results = [function(*batch) for batch in batches]
        return results[0] if len(results) == 1 else torch.cat(results)

    def _solved(
        self, z: Tensor, solver: Solver | None, batch_size: int | None, progress: Progress | None
    ) -> Iterator[Solution]:
        """The solutions of each batch, one after the other."""
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"a batch has at least one sample; got batch_size={batch_size}")
        batches = z.split(batch_size or self.batch_size) if isinstance(z, Tensor) else (z,)
        if progress is not None:
            check_solver(solver)
            layers = sum(isinstance(leaf, TriangularBijection) for leaf in self.net.leaves())
            total, solved = layers * len(batches), count(1)
            solver = Reporting(solver or Auto(), lambda: progress(next(solved), total))
        for batch in batches:
            yield self.net.solve(batch, solver)


def standard_normal_log_prob(z: Tensor) -> Tensor:
    """log N(z; 0, I) of each sample. Shape: (batch,)."""
    z = z.flatten(1)
    return -0.5 * (z * z).sum(1) - 0.5 * z.shape[1] * math.log(2 * math.pi)
