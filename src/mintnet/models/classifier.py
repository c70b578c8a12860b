"""An invertible classifier: a MintNet with batch normalization, then pooling and a linear layer.

    x  ──pad──▶  16 channels  ──Mint layers, squeezes──▶  features  ──[ELU], mean──▶  linear

Everything before the pooling is one-to-one, so that features can be mapped back to pixels.
Zero-padding makes it injective on images and not onto: features of no image are mapped to
padded images whose padding is not 0, and the energy that lands there is reported.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.bijections import BatchNorm, Bijection, Chain, MintLayer, Squeeze
from mintnet.calculus.masks import check_positive
from mintnet.models.fast import fast_value
from mintnet.models.inversion import Inversion, TrainingModeError
from mintnet.models.labelled import ImageClassifier, Pixels
from mintnet.models.storage import CONFIG, ModelFileError, load_weights, read_config, shipped
from mintnet.precision import true_float32
from mintnet.solvers import Auto, Solver


@dataclass(frozen=True)
class ClassifierConfig:
    """The shape of an invertible classifier.

    Attributes:
        width: channels after padding with zeros.
        pairs: pairs of Mint layers in each stage; a 2 × 2 squeeze stands between two stages.
        filters: K of each stage.
        activation: h.
        kernel_size: R.
        t_form: how t is kept positive, see `MintLayer`.
        elu: apply an ELU before the pooling, as the authors' program does.
    """

    width: int = 16
    pairs: tuple[int, ...] = (6, 6, 7)
    filters: tuple[int, ...] = (1, 1, 1)
    activation: str = "leaky_relu"
    kernel_size: int = 3
    t_form: str = "softplus"
    elu: bool = True

    def __post_init__(self) -> None:
        for name in ("pairs", "filters"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.pairs) != len(self.filters) or not self.pairs:
            raise ValueError(
                "pairs and filters need one entry for each stage; got "
                f"{len(self.pairs)} and {len(self.filters)}"
            )
        check_positive(width=self.width)
        for k, count in zip(self.filters, self.pairs, strict=True):
            check_positive(filters=k, pairs=count)

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data."""
        return asdict(self)


SOLVER = Auto()

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
    r"""An invertible classifier of images.

    Args:
        config: the shape of the network.
        pixels: the images it takes.
        classes: how many classes there are.

    Examples:
        >>> clf = Classifier.preset("digits").eval()
        >>> images = torch.randint(0, 17, (4, 1, 8, 8), dtype=torch.uint8)
        >>> clf(images).shape                               # log-probabilities
        torch.Size([4, 10])
        >>> x = clf.invert(clf.features(images))            # certified, or InversionError
        >>> bool((clf.to_images(x) == images).all())
        True
    """

    kind = "classifier"

    def __init__(self, config: ClassifierConfig, pixels: Pixels, classes: int = 10) -> None:
        super().__init__()
        check_positive(classes=classes)
        if pixels.shape[0] > config.width:
            raise ValueError(
                f"images of {pixels.shape[0]} channels cannot be padded to {config.width}; give a "
                f"width of at least {pixels.shape[0]}"
            )
        self.config, self.pixels, self.classes = config, pixels, classes
        c, h, w = config.width, *pixels.shape[1:]
        parts: list[Bijection] = []
        for stage, (pairs, filters) in enumerate(zip(config.pairs, config.filters, strict=True)):
            if stage > 0:
                parts.append(Squeeze(2, (c, h, w)))
                c, h, w = 4 * c, h // 2, w // 2
            for upper in (False, True) * pairs:
                parts.append(BatchNorm(c))
                parts.append(
                    MintLayer(
                        c,
                        filters,
                        (h, w),
                        upper,
                        config.activation,
                        config.kernel_size,
                        config.t_form,
                    )
                )
        self.chain = Chain(*parts)
        self.linear = nn.Linear(c, classes)
        self.feature_shape: tuple[int, int, int] = (c, h, w)
        """(C, H, W) of the features of one image."""
        for layer in self.layers():
            _kaiming(layer)

    @staticmethod
    def preset(name: str) -> Classifier:
        """The classifier of the paper for a data set, with fresh weights.

        Args:
            name: digits, mnist or cifar10.
        """
        short = name.removesuffix("-classifier")
        if short not in CLASSIFIERS:
            raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(CLASSIFIERS)}")
        return Classifier(CLASSIFIERS[short], PIXELS[short])

    def features(self, images: Tensor) -> Tensor:
        """What the classifier makes of images before its ELU and pooling.

        Shapes: (batch, C, H, W) → (batch, *feature_shape).
        """
        self.check_images(images)
        if self.training:
            self.check_training_batch(images)
            return self.values(self.padded(self.prepared(images)))
        with true_float32():
            return self.values(self.padded(self.prepared(images)))

    def invert(self, features: Tensor, solver: Solver | None = None) -> Tensor:
        """The inverse of features without its padding, as floating-point input of the classifier.

        Of features of images: these images, as far as rounding allows. The certificate is about
        features; on the way back their rounding grows thousands of times in a trained network, so
        take float64 (``clf.double()``) where pictures are to come back byte for byte.

        Most features belong to no image. Their inverse is a
        padded image whose padding is not 0; without the padding it has other features than were
        given, and nothing here says so: `solve` reports the energy in the padding, with the
        whole, certified inverse.

        The inverse is certified layer by layer and end to end, or `InversionError`. `to_images`
        makes bytes of the result. Differentiable.

        Shapes: (batch, *feature_shape) → (batch, C, H, W).
        """
        self._check_features(features)
        return self.chain.inverse(features, solver or SOLVER)[:, : self.shape[0]]

    def solve(self, features: Tensor, solver: Solver | None = None) -> Inversion:
        """As `invert`, with the certificate and the padding, and without raising on failure."""
        self._check_features(features)
        return Inversion(self.chain.solve(features, solver or SOLVER), self.shape[0])

    def to_images(self, x: Tensor) -> Tensor:
        """uint8 images from floating-point input of the classifier: rounded and clipped."""
        return self.pixels.denormalized(x).round().clamp(0, self.levels - 1).to(torch.uint8)

    def logits(self, x: Tensor, dtype: torch.dtype | None = None, compiled: bool = False) -> Tensor:
        return self.head(self.values(self.padded(x), dtype, compiled))

    def values(self, x: Tensor, dtype: torch.dtype | None = None, compiled: bool = False) -> Tensor:
        """The chain of layers without log-determinants, from padded images.

        Shapes: (batch, width, H, W) → (batch, *feature_shape).
        """
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

    def parameter_count(self) -> int:
        masked = sum(
            int((~mask).sum())
            for layer in self.layers()
            for mask in (layer.mask1, layer.mask2, layer.mask3)
        )
        return sum(p.numel() for p in self.parameters()) - masked

    def _check_features(self, features: Tensor) -> None:
        if self.training:
            raise TrainingModeError(
                "a classifier has no inverse in training mode: batch normalization takes its "
                "statistics from the batch, so each feature depends on every image. Call .eval() "
                "first."
            )
        if isinstance(features, Tensor) and tuple(features.shape[1:]) != self.feature_shape:
            raise ValueError(
                f"features of this classifier have shape "
                f"(batch, {', '.join(map(str, self.feature_shape))}); got {tuple(features.shape)}"
            )

    def config_dict(self) -> dict[str, Any]:
        return self.config.to_dict()

    @staticmethod
    def from_pretrained(name: str) -> Classifier:
        """The classifier of that name that ships with the package."""
        return Classifier.load(shipped(name, Classifier.kind))

    @staticmethod
    def load(folder: str | Path) -> Classifier:
        """The classifier saved in a folder; of a run folder, its last weights."""
        if not (Path(folder) / CONFIG).exists() and (Path(folder) / "last" / CONFIG).is_file():
            folder = Path(folder) / "last"
        config = read_config(folder, Classifier.kind)
        try:
            model = Classifier(
                ClassifierConfig(**config["net"]), Pixels(**config["pixels"]), config["classes"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(
                f"{Path(folder) / CONFIG} does not describe a classifier: {error}"
            ) from error
        load_weights(folder, model)
        return model.eval()


@torch.no_grad()
def _kaiming(layer: MintLayer) -> None:
    """Kaiming uniform with a = √5 over the whole kernel, masked afterwards, as the authors start.

    That is PyTorch's own start of a convolution; t = 1 stays.
    """
    for weight in (layer.weight1, layer.weight2, layer.weight3):
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
