"""An invertible classifier: a MintNet with batch normalization, then pooling and a linear layer.

    x  ──pad──▶  16 channels  ──Mint layers, squeezes──▶  features  ──[ELU], mean──▶  linear

Everything before the pooling is one-to-one: features can be mapped back to pixels. Features of
no image are mapped to padded images whose padding is not 0, and the energy there is reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.bijections import BatchNorm, Bijection, Chain, MintLayer
from mintnet.models.base import Config, Counts, Shape, Size, Sizes, choose
from mintnet.models.fast import fast_value
from mintnet.models.labelled import LABELLED, ImageClassifier, Pixels
from mintnet.models.mintnet import Kernel, in_stages, mint_weights
from mintnet.solvers import Solution, Solver


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
    def padding(self) -> Tensor:
        """What landed in the padding, (batch, width − C, H, W)."""
        return self.solution.value[:, self.channels :]

    @property
    def padding_energy(self) -> Tensor:
        """The mean square of the padding of each sample, (batch,); 0 for features of an image."""
        return self.padding.square().flatten(1).sum(1) / max(1, self.padding.shape[1:].numel())


PIXELS: dict[str, Pixels] = {
    "digits": Pixels((1, 8, 8), 17, (0.305,), (0.376,)),
    "mnist": Pixels((1, 28, 28), 256, (0.1307,), (0.3081,)),
    "cifar10": Pixels((3, 32, 32), 256, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
"""The images of each data set, with the mean and deviation of its training part."""

CLASSIFIERS: dict[str, ClassifierConfig] = {
    "digits": ClassifierConfig(width=8, pairs=(2, 2), filters=(1, 1)),
    "mnist": ClassifierConfig(),
    "cifar10": ClassifierConfig(),
}


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
            raise ValueError(
                f"images of {channels} channels cannot be padded to {config.width}; give a width "
                f"of at least {channels}"
            )
        form = config.activation, config.kernel_size, config.t_form

        def layers(stage: int, shape: Shape) -> list[Bijection]:
            c, filters = shape[0], config.filters[stage]
            parts: list[Bijection] = []
            for upper in (False, True) * config.pairs[stage]:
                parts += [BatchNorm(c), MintLayer(c, filters, shape[1:], upper, *form)]
            return parts

        padded = config.width, *pixels.shape[1:]
        self.chain = Chain(*in_stages(padded, len(config.pairs), layers))
        c, h, w = self.layers()[-1].event_shape
        self.feature_shape: Shape = (c, h, w)
        self.linear = nn.Linear(c, classes)
        for layer in self.layers():  # PyTorch's own start of a convolution, as the authors have it
            for weight in (layer.weight1, layer.weight2, layer.weight3):
                nn.init.kaiming_uniform_(weight, a=math.sqrt(5))

    @staticmethod
    def preset(name: str) -> Classifier:
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
        """All Mint layers, in the order in which they are applied."""
        return [part for part in self.chain if isinstance(part, MintLayer)]

    def _refuse_training(self) -> None:
        if self.training:
            raise TrainingModeError(
                "a classifier has no inverse in training mode: batch normalization takes its "
                "statistics from the batch, so each feature depends on every image. Call .eval() "
                "first."
            )
