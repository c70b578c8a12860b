r"""Density models of images: pixels in, exact likelihood out, and back.

An image holds D integers v in {0, …, L − 1}. With uniform noise u in (0, 1),

    x = (v + u) / L                       in the unit cube,
    y = logit(λ + (1 − 2λ) x) − c         on the real line, or y = 2x − 1, or y = x,
    z = net(y),
    log p(x) = log q(z) + log |det ∂z/∂y| + log |det ∂y/∂x|,    q normal or logistic.

P(v) = ∫ p over a cube of volume L^−D, so log P(v) ≥ E_u [ log p(x) ] − D log L by Jensen's
inequality: `log_prob` is that for one draw of u; bits per dimension are − log_prob / (D log 2).
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Unpack, cast

import torch
from torch import Tensor

from mintnet.bijections import Bijection, EntrywiseBijection, Equalize, Logit, Rescale, Unchanged
from mintnet.bijections.base import check_input
from mintnet.models.base import Levels, Model, Shape, choose
from mintnet.models.batches import Progress, Reporting, Solving, batches, finite, join_solutions
from mintnet.models.deep import DEEP_PRESETS, DeepConfig, DeepNet, Labels, one_hot
from mintnet.models.mintnet import PRESETS, MintNet, MintNetConfig
from mintnet.models.noise import BASES, Seed, check_index, uniform_noise
from mintnet.precision import true_float32
from mintnet.schema import check
from mintnet.solvers import REMEDY, Solution, Solver

if TYPE_CHECKING:
    from mintnet.analysis.restore import Restoration
    from mintnet.analysis.score import Reference, Score

Transform = Callable[[Tensor], tuple[Tensor, Tensor]]
LAMBDAS = {"digits": 0.01, "mnist": 1e-6, "cifar10": 0.05, "imagenet32": 0.05}
LEVELS = {"digits": 17}
INPUTS: dict[type, str] = {Unchanged: "levels", Equalize: "equalized"}  # of deep models
Count = Annotated[int, (1, 2**40)]
AT_ONCE = {"cpu": 3 * 2**20}  # entries of the widest hidden layer; elsewhere 2**25, 128 MiB


class Flow(Model):
    """Dequantization, a map of the pixels, a network, and the distribution of its output.

    The network is a `MintNet` or a `DeepNet`, by its config. ``lam`` and ``centre`` are λ and c of
    the logit; λ = None maps pixels to [−1, 1] for a `MintNet`. A `DeepNet` takes them as they are,
    and its first layer has a constant density within each of the L ``levels``, or ``equalized`` by
    `Equalize`. ``base``, of z, is normal or logistic; a `MintNet` has normal if it is not given.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> images = torch.randint(0, 17, (4, 1, 8, 8), dtype=torch.uint8)
        >>> flow.bits_per_dim(images).shape
        torch.Size([4])
        >>> bool((flow.decode(flow.encode(images)) == images).all())
        True
    """

    kind = "flow"
    schema: ClassVar[dict[str, Any]] = {
        **{"net": MintNetConfig | DeepConfig, "levels": Levels},
        **{"logit_lambda": float | None, "centre": Annotated[float, (-1e3, 1e3)] | None},
        **{"input": str | None},
        **{"base": Literal["normal", "logistic"] | None},
    }

    def __init__(
        self,
        config: MintNetConfig | DeepConfig,
        lam: float | None = 0.05,
        levels: int = 256,
        centre: float = 0.0,
        base: str | None = None,
        equalized: bool = False,
    ) -> None:
        super().__init__(cast(Shape, config.shape), levels)
        self.pixels: EntrywiseBijection = Rescale() if lam is None else Logit(lam, centre)
        self.net: DeepNet | MintNet
        if isinstance(config, DeepConfig):
            if lam is None and len(config.shape) == 3:
                self.pixels = Equalize(levels) if equalized else Unchanged()
            self.net = DeepNet(config, levels if isinstance(self.pixels, Unchanged) else 0)
        else:
            self.net = MintNet(config)
        self.base_name = base or ("logistic" if isinstance(config, DeepConfig) else "normal")
        self.base = BASES[choose(self.base_name, BASES)]

    @staticmethod
    def preset(name: str) -> "Flow":
        """The paper's model of digits, mnist, cifar10, imagenet32; NAME-deep: of mixture layers."""
        presets: dict[str, MintNetConfig | DeepConfig] = {**PRESETS, **DEEP_PRESETS}
        data = choose(name, presets).removesuffix("-deep")
        lam = LAMBDAS[data] if name in PRESETS else None
        return Flow(presets[name], lam, LEVELS.get(data, 256))

    @property
    def classes(self) -> int:
        """The number of labels that the model is conditioned on, 0 for none."""
        return self.net.config.classes if isinstance(self.net, DeepNet) else 0

    @property
    def dimensions(self) -> int:
        """D = C · H · W."""
        return math.prod(self.shape)

    @property
    def batch_size(self) -> int:
        """Images computed at once; on a CPU arrays above some 30 MB cost fresh pages each time."""
        widest = max(layer.filters * math.prod(layer.event_shape) for layer in self.net.layers())
        return max(1, AT_ONCE.get(self.device.type, 2**25) // widest)

    def log_prob(
        self,
        images: Tensor,
        seed: int = 0,
        draw: int = 0,
        index: Tensor | None = None,
        *,
        labels: Labels = None,
        draws: int = 1,
        bound: str = "mean",
    ) -> Tensor:
        """Nats of uint8 images (batch, C, H, W), (batch,): in expectation at most log P(v).

        ``seed``, ``draw`` (the first of the ``draws``) and ``index``, (batch,), the images' places
        in their data set (from 0 if not given), fix the noise. ``labels`` are those of a
        class-conditional model, one for all images or (batch,). ``bound`` is the ``mean`` of the
        draws' nats, or ``importance``, tighter: the logarithm of the mean of their likelihoods.
        """
        if bound not in ("mean", "importance"):
            raise ValueError(f"bound: expected mean or importance; got {bound!r}")
        check(draws, Count, "draws")
        check(draw, Seed, "draw")
        if labels is None and self.classes:  # any label: log Σ p(label) p(image | label)
            found = self._by_label(images, seed, draw, index, draws=draws, bound=bound)
            return found.logsumexp(1) - math.log(self.classes)

        def nats(x: Tensor, net: Bijection) -> Tensor:
            return self.log_density(x, net.transform)

        numbers = range(draw, draw + draws)
        each = [self._each(nats, images, labels, index, seed=seed, draw=n) for n in numbers]
        found = torch.stack(each)
        return found.mean(0) if bound == "mean" else found.logsumexp(0) - math.log(draws)

    @torch.no_grad()
    def classify(
        self, images: Tensor, seed: int = 0, draws: int = 1, index: Tensor | None = None
    ) -> Tensor:
        """log p(label | image) by Bayes' rule with equally frequent labels, (batch, classes)."""
        if not self.classes:
            raise ValueError("this model is not class-conditional; train one with --labels")
        noise = seed, 0, index
        return self._by_label(images, *noise, draws=draws, bound="importance").log_softmax(1)

    def log_prob_map(self, images: Tensor, *, labels: Labels = None, **noise: Any) -> Tensor:
        """Nats of each entry of the images, (batch, C, H, W), which sum to `log_prob`."""

        def entries(x: Tensor, net: Bijection) -> Tensor:
            y, slopes_of_pixels = self.pixels.log_slopes(x)
            z, slopes = net.log_slopes(y)
            density = self.base.log_prob(net.to_input_order(z))
            return density + slopes + slopes_of_pixels - math.log(self.levels)

        return self._each(entries, images, labels, **noise)

    def dequantize(
        self, images: Tensor, seed: int | None = 0, draw: int = 0, index: Tensor | None = None
    ) -> Tensor:
        """x = (v + u) / L of uint8 images v, with the noise u of `log_prob`; 1/2 without seed."""
        self.check_images(images, floating=False)
        self._check_precision()
        noise: Tensor | float = 0.5
        if seed is not None:
            check(seed, Seed, "seed")
            check(draw, Seed, "draw")
            noise = uniform_noise(seed, draw, check_index(index, images), self.shape, self.dtype)
        return (images.to(self.dtype) + noise) / self.levels

    def log_density(
        self, x: Tensor, transform: Transform | None = None, *, context: Tensor | None = None
    ) -> Tensor:
        """log p(x) − D log L of pixels x in (0, 1), (batch,), by this transform or the net's."""
        if transform is None:
            self._check_precision()
            check_input(x, self.shape, "log_density", self.pixels.domain)
            self.net.check_dtype(x)
            with true_float32():  # or float64, also under autocast
                return finite(self.log_density(x, self.given(context).transform))
        y, log_det_pixels = self.pixels.transform(x)
        z, log_det = transform(y)
        bins = self.dimensions * math.log(self.levels)
        return self.base.log_prob(z).flatten(1).sum(1) + log_det + log_det_pixels - bins

    def bits_per_dim(self, images: Tensor, *noise: Any, **options: Any) -> Tensor:
        """− log_prob / (D log 2), (batch,), with the options of `log_prob`."""
        return -self.log_prob(images, *noise, **options) / (self.dimensions * math.log(2))

    def context(self, labels: Labels, count: int) -> Tensor | None:
        """One-hot labels of ``count`` images, (count, classes); None without classes."""
        found = one_hot(labels, count, self.classes)
        return None if found is None else found.to(self.device, self.dtype)

    def given(self, context: Tensor | None) -> Bijection:
        """The network, for samples with a context where there is one."""
        return self.net if context is None else self.net.given(context)

    def encode(self, images: Tensor, *, labels: Labels = None) -> Tensor:
        """z of the centres of the images' bins, for deep models in float64; see `decode`."""
        flow = self.in_float64() if isinstance(self.net, DeepNet) else self
        return flow._each(lambda x, net: net(flow.pixels.value(x))[0], images, labels, seed=None)

    @torch.no_grad()
    def decode(self, z: Tensor, solver: Solver | None = None, **options: Unpack[Solving]) -> Tensor:
        """The uint8 images with these z; raises `InversionError` unless all are verified.

        Of z = `encode` (images), the same bytes. z in float64 is inverted in float64: errors of
        early pixels of deep models grow along the picture.
        """
        found = self._solved(z, solver, **options)
        return torch.cat([self.to_images(solution.require(REMEDY)) for solution in found])

    @torch.no_grad()
    def solve(
        self, z: Tensor, solver: Solver | None = None, **options: Unpack[Solving]
    ) -> Solution:
        """The inverse of the net alone: what the network takes, verified or not, a `Solution`."""
        return join_solutions(list(self._solved(z, solver, **options)))

    def to_images(self, y: Tensor) -> Tensor:
        """uint8 images from what the network takes."""
        levels = (self.pixels.invert(y) * self.levels).floor()
        return levels.clamp(0, self.levels - 1).to(torch.uint8)

    def sample(
        self,
        count: int,
        temperature: float = 1.0,
        seed: int | None = None,
        solver: Solver | None = None,
        **options: Unpack[Solving],
    ) -> Tensor:
        """New images, uint8 (count, C, H, W), by the inverse; without labels, classes by turns."""
        return self.decode(self.sample_latents(count, temperature, seed), solver, **options)

    def sample_latents(
        self, count: int, temperature: float = 1.0, seed: int | None = None
    ) -> Tensor:
        """z of the net's output shape, drawn on the CPU: from N(0, temperature²), mapped to q."""
        check(temperature, Annotated[float, (1e-6, 1e6)], "temperature")
        check(count, Count, "count")
        seed = check(seed, Seed | None, "seed")
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        shape = self.net.output_shape or self.shape
        z = self.base.from_normal(torch.randn(count, *shape, generator=generator) * temperature)
        return z.to(self.device, self.dtype)

    def score(
        self, images: Tensor, draws: int = 1, reference: "Tensor | Reference | None" = None
    ) -> "Score":
        """Bits, p-values and maps of nats: how odd uint8 images are, see `analysis.score.score`."""
        from mintnet.analysis.score import score

        return score(self, images, draws, reference)

    def keep_scores(self, images: Tensor, draws: int = 1) -> None:
        """Measure reference images (n, C, H, W), held out of training, and keep their scores."""
        from mintnet.analysis.score import Reference

        self.scores = Reference.of(self, images, draws).tensors()

    def restore(self, image: Tensor, mask: Tensor | None = None, **options: Any) -> "Restoration":
        """Posterior samples of a picture with something hidden, see `analysis.restore.restore`."""
        from mintnet.analysis.restore import restore

        return restore(self, image, mask, **options)

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": self.kind, "net": asdict(self.net.config)}
        if isinstance(self.pixels, Logit):
            found["logit_lambda"] = self.pixels.lam
            found |= {"centre": self.pixels.centre} if self.pixels.centre else {}
        else:
            found["input"] = INPUTS.get(type(self.pixels), "rescaled")
        return {**found, "levels": self.levels, "base": self.base_name}

    @classmethod
    def from_description(cls, config: dict[str, Any]) -> Self:
        centre, base, pixels = config.get("centre", 0.0), config.get("base"), config.get("input")
        lam = None if pixels else check(config.get("logit_lambda"), float, "logit_lambda")
        wanted = tuple(INPUTS.values()) if isinstance(config["net"], DeepConfig) else ("rescaled",)
        if pixels not in (None, *wanted) or (pixels and "logit_lambda" in config):
            raise ValueError(f"input: expected {' or '.join(wanted)}; got {pixels!r}")
        return cls(config["net"], lam, config["levels"], centre, base, pixels == "equalized")

    def _check_precision(self) -> None:
        if self.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"expected float32 or float64; got {self.dtype}: take flow.float()")

    def _by_label(self, images: Tensor, *noise: Any, **options: Any) -> Tensor:
        """log p(image | label) of every label, (batch, classes)."""
        labels = range(self.classes)
        return torch.stack([self.log_prob(images, *noise, labels=k, **options) for k in labels], 1)

    def _each(
        self,
        function: Callable[[Tensor, Bijection], Tensor],
        images: Tensor,
        labels: Labels,
        index: Tensor | None = None,
        **noise: Any,
    ) -> Tensor:
        """``function`` of dequantized images and of the network for them, batch by batch."""
        self.check_images(images, floating=False)
        context, places = self.context(labels, images.shape[0]), check_index(index, images)
        with true_float32():
            found = [
                function(self.dequantize(part, index=at, **noise), self.given(given))
                for part, given, at in batches(self.batch_size, images, context, places)
            ]
            return finite(found[0] if len(found) == 1 else torch.cat(found))

    def in_float64(self) -> Self:
        """The model, or a copy of it in float64."""
        return self if self.dtype == torch.float64 else copy.deepcopy(self).double()

    def _solved(
        self,
        z: Tensor,
        solver: Solver | None,
        labels: Labels = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Solution]:
        name = f"the inverse of {type(self.net).__name__}"
        check_input(z, self.net.output_shape, name, finite=False)
        exact = isinstance(self.pixels, Unchanged) or z.dtype == torch.float64
        if exact and self.dtype != torch.float64:
            yield from self.in_float64()._solved(z.double(), solver, labels, batch_size, progress)
            return
        size = check(batch_size, Count | None, "batch_size") or self.batch_size
        parts = batches(size, z, self.context(labels, len(z)))
        if progress is not None:
            solver = Reporting(solver, self.net, len(parts), progress)
        for part, given in parts:
            yield self.given(given).solve(part, solver)
