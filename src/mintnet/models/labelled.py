"""What classifiers of images have in common: pixels in, log-probabilities out, files."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from mintnet.graphs import is_capturing
from mintnet.models.base import Config, Levels, Model, Shape, Size
from mintnet.precision import true_float32
from mintnet.schema import check


@dataclass(frozen=True)
class Pixels(Config):
    """The images that a classifier takes: a byte v becomes (v / (levels − 1) − mean) / deviation.

    The shape is (C, H, W); mean and deviation of each channel, or one for all, go from 0 to 1.

    Examples:
        >>> Pixels((1, 1, 1), 256, (0.5,), (0.5,)).normalized(torch.full((1, 1, 1, 1), 255.0))
        tensor([[[[1.]]]])
    """

    shape: Shape
    levels: Levels = 256
    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[Annotated[float, (1e-6, 1e6)], ...] = (0.25,)

    def check_more(self) -> None:
        channels = self.shape[0]
        for name in ("mean", "deviation"):
            values = getattr(self, name)
            if len(values) not in (1, channels):
                raise ValueError(
                    f"{name} needs one entry for each of {channels} channels; got {len(values)}"
                )
            object.__setattr__(self, name, values * (channels // len(values)))

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


LABELLED = {"pixels": Pixels, "classes": Size}
"""What a saved classifier says besides its network."""


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
