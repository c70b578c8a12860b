"""What density models and classifiers share: their images, their files, where their weights are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mintnet.calculus.masks import check_positive
from mintnet.models.storage import (
    CONFIG,
    ModelFileError,
    load_weights,
    locate,
    read_config,
    save_model,
    shipped,
)

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class StageConfig:
    """The shape of a network in stages, as plain data."""

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data."""
        return asdict(self)

    def check_stages(self, *names: str) -> None:
        """Make tuples of these fields; raise unless all have one positive entry a stage."""
        for name in names:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        lengths = [len(getattr(self, name)) for name in names]
        if len(set(lengths)) > 1 or not lengths[0]:
            raise ValueError(
                f"{' and '.join(names)} need one entry for each stage; got "
                f"{' and '.join(map(str, lengths))}"
            )
        for name in names:
            for entry in getattr(self, name):
                check_positive(**{name: entry})


class Model(nn.Module, ABC):
    """A network that takes images of one shape, and its files.

    A subclass says what it is called in files (``kind``) and how it is described there.

    Args:
        shape: (C, H, W) of one image.
        levels: L, the number of grey levels.
    """

    kind: ClassVar[str]

    def __init__(self, shape: Shape, levels: int) -> None:
        super().__init__()
        if not 2 <= levels <= 256:
            raise ValueError(f"levels must lie between 2 and 256; got {levels}")
        self.shape, self.levels = shape, levels

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The configuration as it is saved, as plain data."""

    @classmethod
    @abstractmethod
    def from_description(cls, config: dict[str, Any]) -> Self:
        """A model with fresh weights, from what `describe` gives."""

    def save(self, folder: str | Path, **extra: Any) -> None:
        """Write ``model.safetensors`` and ``config.json``, with ``extra`` in it, into a folder."""
        save_model(folder, self, {**self.describe(), **extra})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The model saved in a folder; of a run folder, its last weights."""
        folder = locate(folder)
        config = read_config(folder, cls.kind)
        try:
            model = cls.from_description(config)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelFileError(
                f"{folder / CONFIG} does not describe a {cls.kind}: {error}"
            ) from error
        load_weights(folder, model)
        return model.eval()

    @classmethod
    def from_pretrained(cls, name: str) -> Self:
        """The model of that name that ships with the package."""
        return cls.load(shipped(name, cls.kind))

    def parameter_count(self) -> int:
        """Weights that are not masked, and all other parameters."""
        return parameter_count(self)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def check_images(self, images: Tensor, floating: bool = True) -> None:
        """Raise unless these are images of this model's shape and levels.

        With ``floating``, finite numbers in the precision of the weights will do as well.
        """
        name = type(self).__name__
        if not isinstance(images, Tensor):
            raise TypeError(
                f"{name} takes a tensor of images; got {type(images).__name__}: torch.from_numpy "
                "makes one of an array"
            )
        if tuple(images.shape[1:]) != self.shape:
            more = ""
            if images.dim() == 4 and images.shape[1] != self.shape[0]:
                more = f": it was made for {self.shape[0]} channels, these have {images.shape[1]}"
            raise ValueError(
                f"{name} takes images of shape (batch, {', '.join(map(str, self.shape))}); got "
                f"{tuple(images.shape)}{more}"
            )
        if images.dtype != torch.uint8 and not (floating and images.dtype == self.dtype):
            more = f", or normalised ones in {self.dtype} like its weights" if floating else ""
            raise ValueError(f"{name} takes uint8 images{more}; got {images.dtype}")
        if not images.numel() or is_capturing(images):
            return  # a value cannot be read back during capture
        if images.dtype != torch.uint8:
            if not bool(images.isfinite().all()):
                raise ValueError(f"{name} takes finite numbers; some are NaN or infinite")
        elif self.levels < 256 and (top := int(images.max())) >= self.levels:
            raise ValueError(
                f"this model knows {self.levels} grey levels, 0 to {self.levels - 1}; got a pixel "
                f"of {top}"
            )


def choose(name: str, presets: dict[str, Any], suffix: str = "") -> str:
    """The preset that is meant, without its suffix; raises with the list of all.

    Examples:
        >>> choose("mnist-resnet", {"mnist": 1}, "-resnet")
        'mnist'
    """
    short = name.removesuffix(suffix)
    if short not in presets:
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(presets)}")
    return short


def is_capturing(x: Tensor) -> bool:
    """Whether a CUDA graph is being captured, so that no value can be read back."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def parameter_count(net: nn.Module) -> int:
    """Weights and biases, those that a mask holds at 0 left out.

    Examples:
        >>> from mintnet.calculus import MaskedLinear
        >>> parameter_count(MaskedLinear(3))   # six weights of nine, three biases
        9
    """
    total = 0
    for module in net.modules():
        buffers = dict(module.named_buffers(recurse=False))
        for name, parameter in module.named_parameters(recurse=False):
            mask = buffers.get(name.replace("weight", "mask")) if "weight" in name else None
            total += parameter.numel() if mask is None else int(mask.sum())
    return total
