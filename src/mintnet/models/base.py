"""What density models and classifiers share: their images, their files, where their weights are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mintnet.calculus.masks import check_positive
from mintnet.graphs import is_capturing
from mintnet.models import storage

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Config:
    """A configuration that is saved as plain data, where tuples are lists."""

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data."""
        return asdict(self)

    def make_tuples(self, *names: str) -> None:
        for name in names:
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def check_stages(self, *names: str) -> None:
        """Make tuples of these fields; raise unless all have one positive entry a stage."""
        self.make_tuples(*names)
        lengths = [len(getattr(self, name)) for name in names]
        if len(set(lengths)) > 1 or not lengths[0]:
            got = " and ".join(map(str, lengths))
            raise ValueError(f"{' and '.join(names)} need one entry for each stage; got {got}")
        for name in names:
            for entry in getattr(self, name):
                check_positive(**{name: entry})


class Model(nn.Module, ABC):
    """A network, called ``kind`` in files, for images (C, H, W) with ``levels`` grey levels."""

    kind: ClassVar[str] = "model"
    kinds: ClassVar[dict[str, type[Model]]] = {}

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            cls.kinds[cls.kind] = cls

    def __init__(self, shape: Shape, levels: int) -> None:
        super().__init__()
        check_levels(levels)
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
        storage.save_model(folder, self, {**self.describe(), **extra})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The model saved in a folder, of this class or a subclass; of a run, its last weights."""
        folder = storage.locate(folder)
        config = storage.read_config(folder)
        found = cls.kinds.get(kind := config["kind"])
        if found is None or not issubclass(found, cls):
            known = " or ".join(k for k, each in cls.kinds.items() if issubclass(each, cls))
            problem = f"{folder / storage.CONFIG}: kind: expected {known}; got {kind}"
            raise storage.ModelFileError(problem)
        try:
            model = found.from_description(config)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"{folder / storage.CONFIG} does not describe a {kind}: {error}"
            raise storage.ModelFileError(problem) from error
        model.read(folder)
        return model.eval()

    def read(self, folder: Path) -> None:
        """Read the weights that were saved in a folder."""
        storage.load_weights(folder, self)

    @classmethod
    def from_pretrained(cls, name: str) -> Self:
        """The model of that name that ships with the package."""
        return cls.load(storage.shipped(name, cls.kind))

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
        """Raise unless these are images for this model: bytes, or also ``floating`` numbers."""
        name = type(self).__name__
        if not isinstance(images, Tensor):
            raise TypeError(
                f"{name} takes a tensor of images; got {type(images).__name__}: torch.from_numpy "
                "makes one of an array"
            )
        more, got = "", tuple(images.shape)
        if got[1:] != self.shape:
            if len(got) == 4 and got[1] != self.shape[0]:
                more = f": it was made for {self.shape[0]} channels, these have {got[1]}"
            expected = f"(batch, {', '.join(map(str, self.shape))})"
            raise ValueError(f"{name} takes images of shape {expected}; got {got}{more}")
        if images.dtype != torch.uint8 and not (floating and images.dtype == self.dtype):
            more = f", or normalised ones in {self.dtype} like its weights" if floating else ""
            raise ValueError(f"{name} takes uint8 images{more}; got {images.dtype}")
        if not images.numel() or is_capturing(images):
            return  # a value cannot be read back during capture
        if images.dtype != torch.uint8:
            if not bool(images.isfinite().all()):
                raise ValueError(f"{name} takes finite numbers; some are NaN or infinite")
        elif self.levels < 256 and (top := int(images.max())) >= self.levels:
            known = f"{self.levels} grey levels, 0 to {self.levels - 1}"
            raise ValueError(f"this model knows {known}; got a pixel of {top}")


def check_levels(levels: int) -> None:
    """Raise unless bytes can hold this number of grey levels."""
    if not 2 <= levels <= 256:
        raise ValueError(f"levels must lie between 2 and 256; got {levels}")


def choose(name: str, presets: dict[str, Any], suffix: str = "") -> str:
    """The preset that is meant, without its suffix; raises with the list of all."""
    short = name.removesuffix(suffix)
    if short not in presets:
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(presets)}")
    return short


def parameter_count(net: nn.Module) -> int:
    """Weights and biases, those that a mask holds at 0 left out."""
    total = 0
    for module in net.modules():
        buffers = dict(module.named_buffers(recurse=False))
        for name, parameter in module.named_parameters(recurse=False):
            mask = buffers.get(name.replace("weight", "mask")) if "weight" in name else None
            total += parameter.numel() if mask is None else int(mask.sum())
    return total
