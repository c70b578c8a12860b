"""What classifiers of images have in common: pixels in, log-probabilities out, files."""

from __future__ import annotations

import math
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor

from mintnet.calculus.masks import check_positive
from mintnet.models.base import Model, Shape, StageConfig, is_capturing
from mintnet.precision import true_float32


@dataclass(frozen=True)
class Pixels:
    """The images that a classifier takes, and how their bytes become numbers.

    A byte v of a channel becomes (v / (levels − 1) − mean) / deviation.

    Attributes:
        shape: (C, H, W) of one image.
        levels: the number of grey levels.
        mean: of each channel, on the scale from 0 to 1.
        deviation: of each channel, likewise.

    Examples:
        >>> Pixels((1, 2, 2), 256, (0.5,), (0.5,)).normalized(torch.full((1, 1, 2, 2), 255.0))
        tensor([[[[1., 1.],
                  [1., 1.]]]])
    """

    shape: Shape
    levels: int = 256
    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.25,)

    def __post_init__(self) -> None:
        for name in ("shape", "mean", "deviation"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.shape) != 3:
            raise ValueError(f"shape is (channels, height, width); got {self.shape}")
        check_positive(channels=self.shape[0], height=self.shape[1], width=self.shape[2])
        if not 2 <= self.levels <= 256:
            raise ValueError(f"levels must lie between 2 and 256; got {self.levels}")
        for name in ("mean", "deviation"):
            values = getattr(self, name)
            if not all(_is_number(value) for value in values):
                raise ValueError(f"{name} must be finite numbers, one a channel; got {values}")
            if len(values) == 1:
                object.__setattr__(self, name, values * self.shape[0])
            elif len(values) != self.shape[0]:
                raise ValueError(
                    f"{name} needs one entry for each of {self.shape[0]} channels; got "
                    f"{len(values)}"
                )
        if not all(value > 0 for value in self.deviation):
            raise ValueError(f"deviation must be positive; got {self.deviation}")

    def normalized(self, pixels: Tensor) -> Tensor:
        """Numbers that a network takes, from pixels of 0 … levels − 1 in floating point."""
        mean, deviation = self._constants(pixels)
        return (pixels / (self.levels - 1) - mean) / deviation

    def denormalized(self, x: Tensor) -> Tensor:
        """The reverse of `normalized`: pixels in units of grey levels, not rounded."""
        mean, deviation = self._constants(x)
        return (x * deviation + mean) * (self.levels - 1)

    def to_dict(self) -> dict[str, Any]:
        """The description as plain data."""
        return asdict(self)

    def _constants(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation as (C, 1, 1), filled on the device: nothing waits for the host."""
        mean, deviation = like.new_empty(2, self.shape[0], 1, 1)
        for channel in range(self.shape[0]):
            mean[channel].fill_(self.mean[channel])
            deviation[channel].fill_(self.deviation[channel])
        return mean, deviation


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class ImageClassifier(Model):
    """Images to log-probabilities of classes.

    Calling it checks the images first. Training uses `logits`, which does not check them, reads
    nothing back from a GPU and can run in another precision.

    Args:
        config: the shape of the network.
        pixels: the images it takes.
        classes: how many classes there are.
    """

    config_class: type[StageConfig]
    config: Any

    def __init__(self, config: StageConfig, pixels: Pixels, classes: int) -> None:
        check_positive(classes=classes)
        super().__init__(pixels.shape, pixels.levels)
        self.config, self.pixels, self.classes = config, pixels, classes

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities of the classes.

        uint8 images are normalised; floating-point input is taken as it is, and must have the
        precision of the weights.

        Shapes: (batch, C, H, W) → (batch, classes).
        """
        with self.checked(images):
            return self.logits(self.prepared(images)).log_softmax(1)

    @abstractmethod
    def logits(self, x: Tensor, dtype: torch.dtype | None = None, compiled: bool = False) -> Tensor:
        """Logits of prepared images, without checks.

        Args:
            x: (batch, C, H, W), as `prepared` gives it.
            dtype: of convolutions; that of x if not given.
            compiled: let torch compile the layers.

        Shape: (batch, classes).
        """

    def prepared(self, images: Tensor) -> Tensor:
        """What enters the network: bytes normalised, anything else as it is."""
        if images.dtype == torch.uint8:
            return self.pixels.normalized(images.to(self.dtype))
        return images

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "net": self.config.to_dict(),
            "pixels": self.pixels.to_dict(),
            "classes": self.classes,
        }

    @classmethod
    def from_description(cls, config: dict[str, Any]) -> Self:
        net, pixels = cls.config_class(**config["net"]), Pixels(**config["pixels"])
        return cls(net, pixels, config["classes"])

    def checked(self, images: Tensor) -> AbstractContextManager[None]:
        """Raise unless the network can take these images; a context of true float32 to evaluate in.

        In training mode, batch normalization must be able to learn from them.
        """
        self.check_images(images)
        name = type(self).__name__
        if not len(images):
            raise ValueError(f"{name} takes at least one image; got {tuple(images.shape)}")
        if not self.training:
            return true_float32()
        if len(images) < 2:
            raise ValueError(
                f"{name} in training mode needs at least two images: batch normalization takes its "
                "statistics from the batch; got one. Use a larger batch, or call .eval() first."
            )
        if not is_capturing(images) and bool((images == images[:1, :, :1, :1]).all()):
            raise ValueError(
                f"{name} cannot be trained on this batch: all of its images are the same constant "
                "colour, so batch normalization would divide by 0. Give it different images, or "
                "call .eval() first."
            )
        return nullcontext()
