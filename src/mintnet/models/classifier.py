"""An invertible classifier: a MintNet with batch normalization, then pooling and a linear layer.

    x  ──pad──▶  16 channels  ──Mint layers, squeezes──▶  features  ──[ELU], mean──▶  linear

Everything before the pooling is one-to-one: features can be mapped back to pixels.
"""

import math
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.bijections import BatchNorm, Bijection, Chain, MintLayer
from mintnet.graphs import is_capturing
from mintnet.models.base import Config, Counts, Levels, Model, Shape, Size, Sizes, choose
from mintnet.models.fast import fast_value
from mintnet.models.mintnet import Kernel, in_stages, mint_weights
from mintnet.precision import true_float32
from mintnet.schema import check
from mintnet.solvers import Solution, Solver


@dataclass(frozen=True)
class Pixels(Config):
    """Images as a classifier takes them: a byte v becomes (v / (levels − 1) − mean) / deviation."""

    shape: Shape  # (C, H, W)
    levels: Levels = 256
    mean: tuple[float, ...] = (0.5,)  # of each channel, or one for all, from 0 to 1
    deviation: tuple[Annotated[float, (1e-6, 1e6)], ...] = (0.25,)  # likewise

    def check_more(self) -> None:
        channels = self.shape[0]
        for name in ("mean", "deviation"):
            if (given := len(values := getattr(self, name))) not in (1, channels):
                raise ValueError(f"{name} needs 1 or {channels} entries, by channel; got {given}")
            object.__setattr__(self, name, values * (channels // given))

    def normalized(self, pixels: Tensor) -> Tensor:
        """Numbers that a network takes, from pixels of 0 … levels − 1 in floating point."""
        mean, deviation = self._constants(pixels)
        return (pixels / (self.levels - 1) - mean) / deviation

    def denormalized(self, x: Tensor) -> Tensor:
        """The reverse of `normalized`: pixels in units of grey levels, not rounded."""
        mean, deviation = self._constants(x)
        return (x * deviation + mean) * (self.levels - 1)

    def _constants(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation as (C, 1, 1), filled on the device: nothing waits for the host."""
        mean, deviation = like.new_empty(2, self.shape[0], 1, 1)
        for channel in range(self.shape[0]):
            mean[channel].fill_(self.mean[channel])
            deviation[channel].fill_(self.deviation[channel])
        return mean, deviation


LABELLED = {"pixels": Pixels, "classes": Size}  # what a file says besides the network


class ImageClassifier(Model):
    """Images to log-probabilities of classes; training uses `logits`, which checks nothing."""

    config: Any

    def __init__(self, config: Config, pixels: Pixels, classes: int) -> None:
        check(classes, Size, "classes")
        super().__init__(pixels.shape, pixels.levels)
        self.config, self.pixels, self.classes = config, pixels, classes

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities, (batch, classes), of bytes, or of floating-point input as it is."""
        with self.checked(images):
            return self.logits(self.prepared(images)).log_softmax(1)

    @abstractmethod
    def logits(self, x: Tensor, dtype: torch.dtype | None = None, compiled: bool = False) -> Tensor:
        """Logits of what `prepared` gives, without checks, with convolutions in ``dtype``."""

    def prepared(self, images: Tensor) -> Tensor:
        """What enters the network: bytes normalised, anything else as it is."""
        if images.dtype == torch.uint8:
            return self.pixels.normalized(images.to(self.dtype))
        return images

    def describe(self) -> dict[str, Any]:
        net, pixels = asdict(self.config), asdict(self.pixels)
        return {"kind": self.kind, "net": net, "pixels": pixels, "classes": self.classes}

    @classmethod
    def from_description(cls, config: dict[str, Any]) -> Self:
        return cls(config["net"], config["pixels"], config["classes"])

    def checked(self, images: Tensor) -> AbstractContextManager[None]:
        """Raise unless the network can take, or learn from, these images; a context to run in."""
        self.check_images(images)
        name = type(self).__name__
        if not len(images):
            raise ValueError(f"{name} takes at least one image; got {tuple(images.shape)}")
        if not self.training:
            return true_float32()
        if len(images) < 2:
            raise ValueError(f"{name} in training mode needs at least two images; or call .eval()")
        if not is_capturing(images) and bool((images == images[:1, :, :1, :1]).all()):
            why = "the same constant colour, so batch normalization would divide by 0"
            raise ValueError(f"all images of the batch are {why}; give others, or call .eval()")
        return nullcontext()


@dataclass(frozen=True)
class ClassifierConfig(Config):
    """The shape of a classifier, see `MintNetConfig`; ``elu`` comes before the pooling."""

    width: Size = 16
    pairs: Counts = (6, 6, 7)
    filters: Sizes = (1, 1, 1)
    activation: str = "leaky_relu"
    kernel_size: Kernel = 3
    t_form: str = "softplus"
    elu: bool = True

    def check_more(self) -> None:
        self.check_stages("pairs", "filters")

    def least_weights(self) -> int:
        return mint_weights((self.width, 1, 1), self.pairs, self.filters, self.kernel_size)


class TrainingModeError(ValueError, RuntimeError):
    """An inverse was asked of a network in training mode, where it has none."""


@dataclass(frozen=True)
class Inversion:
    """The padded images that have given features; the first ``channels`` are the image's own."""

    solution: Solution
    channels: int

    @property
    def images(self) -> Tensor:
        """Without their padding, (batch, C, H, W); with other features, unless that is near 0."""
        return self.solution.value[:, : self.channels]

    @property
    def padding_energy(self) -> Tensor:
        """The mean square of the padding of each sample, (batch,); 0 for features of an image."""
        padding = self.solution.value[:, self.channels :]
        return padding.square().flatten(1).sum(1) / max(1, padding.shape[1:].numel())


PIXELS = {
    "digits": Pixels((1, 8, 8), 17, (0.305,), (0.376,)),
    "mnist": Pixels((1, 28, 28), 256, (0.1307,), (0.3081,)),
    "cifar10": Pixels((3, 32, 32), 256, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}

CLASSIFIERS = {"digits": ClassifierConfig(width=8, pairs=(2, 2), filters=(1, 1))}
CLASSIFIERS |= {"mnist": ClassifierConfig(), "cifar10": ClassifierConfig()}


class Classifier(ImageClassifier):
    """An invertible classifier of images; its features have shape (batch, *feature_shape).

    Examples:
        >>> clf = Classifier.preset("digits").eval()
        >>> images = torch.randint(0, 17, (4, 1, 8, 8), dtype=torch.uint8)
        >>> clf(images).shape                               # log-probabilities
        torch.Size([4, 10])
        >>> x = clf.invert(clf.features(images))            # verified, or InversionError
        >>> bool((clf.to_images(x) == images).all())
        True
    """

    kind = "classifier"
    config: ClassifierConfig
    schema: ClassVar[Any] = {"net": ClassifierConfig, **LABELLED}

    def __init__(self, config: ClassifierConfig, pixels: Pixels, classes: int = 10) -> None:
        super().__init__(config, pixels, classes)
        if (channels := pixels.shape[0]) > config.width:
            width = f"{config.width}; give a width of at least {channels}"
            raise ValueError(f"images of {channels} channels cannot be padded to {width}")
        form = config.activation, config.kernel_size, config.t_form

        def layers(stage: int, shape: Shape) -> list[Bijection]:
            c, filters = shape[0], config.filters[stage]
            parts: list[Bijection] = []
            for upper in (False, True) * config.pairs[stage]:
                parts += [BatchNorm(c), MintLayer(c, filters, shape[1:], upper, *form)]
            return parts

        self.chain = Chain(*in_stages((config.width, *pixels.shape[1:]), len(config.pairs), layers))
        c, h, w = self.layers()[-1].event_shape
        self.feature_shape: Shape = (c, h, w)
        self.linear = nn.Linear(c, classes)
        for layer in self.layers():  # PyTorch's own start of a convolution, as the authors have it
            for weight in (layer.weight1, layer.weight2, layer.weight3):
                nn.init.kaiming_uniform_(weight, a=math.sqrt(5))

    @staticmethod
    def preset(name: str) -> "Classifier":
        """The paper's classifier for digits, mnist or cifar10, with fresh weights."""
        name = choose(name, CLASSIFIERS, "-classifier")
        return Classifier(CLASSIFIERS[name], PIXELS[name])

    def features(self, images: Tensor) -> Tensor:
        """What the classifier makes of images before its ELU and pooling."""
        with self.checked(images):
            return self.values(self.padded(self.prepared(images)))

    def invert(self, features: Tensor, solver: Solver | None = None) -> Tensor:
        """The images with these features, without the padding, verified or `InversionError`.

        Differentiable. Rounding of features grows thousands of times on the way back through a
        trained network: take ``clf.double()`` where pictures are to come back byte for byte.
        """
        self._refuse_training()
        return self.chain.inverse(features, solver)[:, : self.shape[0]]

    def solve(self, features: Tensor, solver: Solver | None = None) -> Inversion:
        """As `invert`, with the residual check and the padding, and without raising on failure."""
        self._refuse_training()
        return Inversion(self.chain.solve(features, solver), self.shape[0])

    def to_images(self, x: Tensor) -> Tensor:
        """uint8 images from floating-point input of the classifier: rounded and clipped."""
        return self.pixels.denormalized(x).round().clamp(0, self.levels - 1).to(torch.uint8)

    def logits(self, x: Tensor, dtype: torch.dtype | None = None, compiled: bool = False) -> Tensor:
        return self.head(self.values(self.padded(x), dtype, compiled))

    def values(self, x: Tensor, dtype: torch.dtype | None = None, compiled: bool = False) -> Tensor:
        """Features of padded images, (batch, width, H, W), without log-determinants."""
        if dtype is None and not compiled:
            return self.chain.value(x)
        return fast_value(self.chain, x, dtype or torch.float32, compiled)

    def head(self, features: Tensor) -> Tensor:
        """Logits of features: [ELU], the mean over places, the linear layer."""
        if self.config.elu:
            features = F.elu(features)
        return self.linear(features.mean((2, 3)))  # type: ignore[no-any-return]

    def padded(self, x: Tensor) -> Tensor:
        """x with channels of zeros after its own, ``width`` in all."""
        return F.pad(x, (0, 0, 0, 0, 0, self.config.width - x.shape[1]))

    def layers(self) -> list[MintLayer]:
        return [part for part in self.chain if isinstance(part, MintLayer)]

    def _refuse_training(self) -> None:
        if self.training:
            why = "batch normalization takes its statistics from the batch"
            raise TrainingModeError(f"no inverse in training mode: {why}; call .eval() first")
