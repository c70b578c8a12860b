"""What classifiers of images have in common: pixels in, log-probabilities out, files."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.calculus.masks import check_positive
from mintnet.models.storage import save_model
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

    shape: tuple[int, int, int]
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
        columns = []
        for values in (self.mean, self.deviation):
            column = torch.empty(len(values), 1, 1, dtype=like.dtype, device=like.device)
            for channel, value in enumerate(values):
                column[channel].fill_(value)
            columns.append(column)
        return columns[0], columns[1]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class ImageClassifier(nn.Module, ABC):
    """Images to log-probabilities of classes.

    Calling it with images checks them first. Training uses `logits`, which does not, waits for
    nothing and can run in another precision.
    """

    kind: str
    """What it is called in configuration files."""

    pixels: Pixels
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        return self.pixels.shape

    @property
    def levels(self) -> int:
        """The number of grey levels."""
        return self.pixels.levels

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities of the classes.

        uint8 images are normalised; floating-point input is taken as it is, and must have the
        precision of the weights.

        Shapes: (batch, C, H, W) → (batch, classes).
        """
        self.check_images(images)
        if self.training:
            self.check_training_batch(images)
            return self.logits(self.prepared(images)).log_softmax(1)
        with true_float32():
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

    @abstractmethod
    def parameter_count(self) -> int:
        """Weights that are not masked, and all other parameters."""

    @abstractmethod
    def config_dict(self) -> dict[str, Any]:
        """The shape of the network as plain data."""

    def prepared(self, images: Tensor) -> Tensor:
        """What enters the network: bytes normalised, anything else as it is."""
        if images.dtype == torch.uint8:
            return self.pixels.normalized(images.to(self.dtype))
        return images

    def describe(self) -> dict[str, Any]:
        """The configuration as it is saved."""
        return {
            "kind": self.kind,
            "net": self.config_dict(),
            "pixels": self.pixels.to_dict(),
            "classes": self.classes,
        }

    def save(self, folder: str | Path, **extra: Any) -> None:
        """Write ``model.safetensors`` and ``config.json`` into a folder."""
        save_model(folder, self, {**self.describe(), **extra})

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def check_images(self, images: Tensor) -> None:
        """Raise ValueError unless these are images that this network can take."""
        name = type(self).__name__
        expected = f"(batch, {', '.join(map(str, self.shape))})"
        if not isinstance(images, Tensor):
            raise ValueError(f"{name} expects a tensor of images; got {type(images).__name__}")
        if tuple(images.shape[1:]) != self.shape:
            found = images.shape[1] if images.dim() == 4 else None
            words = ""
            if found is not None and found != self.shape[0]:
                words = f": it was made for {self.shape[0]} channels, these have {found}"
            raise ValueError(
                f"{name} expects images of shape {expected}; got {tuple(images.shape)}{words}"
            )
        if not len(images):
            raise ValueError(f"{name} expects at least one image; got {tuple(images.shape)}")
        if images.dtype != torch.uint8 and images.dtype != self.dtype:
            raise ValueError(
                f"{name} takes uint8 images, or normalised ones in {self.dtype} like its weights; "
                f"got {images.dtype}"
            )
        if images.is_cuda and torch.cuda.is_current_stream_capturing():
            return  # reading a value back is not possible here
        if images.dtype == torch.uint8 and self.levels < 256:
            if (top := int(images.max())) >= self.levels:
                raise ValueError(
                    f"this model knows {self.levels} grey levels, 0 to {self.levels - 1}; got a "
                    f"pixel of {top}"
                )
        elif images.dtype != torch.uint8 and not bool(images.isfinite().all()):
            raise ValueError(f"{name} expects finite numbers; some are NaN or infinite")

    def check_training_batch(self, images: Tensor) -> None:
        """Raise ValueError where batch normalization cannot learn from a batch."""
        name = type(self).__name__
        if len(images) < 2:
            raise ValueError(
                f"{name} in training mode needs at least two images: batch normalization takes its "
                "statistics from the batch; got one. Use a larger batch, or call .eval() first."
            )
        if images.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        if bool((images == images[:1, :, :1, :1]).all()):
            raise ValueError(
                f"{name} cannot be trained on this batch: all of its images are the same constant "
                "colour, so batch normalization would divide by 0. Give it different images, or "
                "call .eval() first."
            )
