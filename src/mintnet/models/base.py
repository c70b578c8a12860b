"""What density models and classifiers share: their images, their files, where their weights are."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_type_hints

import torch
from torch import Tensor, nn

from mintnet.graphs import is_capturing
from mintnet.models import storage
from mintnet.schema import check

Size = Annotated[int, (1, 2**16)]
Sizes = tuple[Size, ...]
Counts = tuple[Annotated[int, (1, 1000)], ...]
Shape = tuple[Size, Size, Size]
Levels = Annotated[int, (2, 256)]
MOST_WEIGHTS = 2**29


@dataclass(frozen=True)
class Config:
    """A configuration whose fields are checked against their types, also those given in Python."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            object.__setattr__(self, name, check(getattr(self, name), kind, name))
        self.check_more()
        if (count := self.least_weights()) > MOST_WEIGHTS:
            raise ValueError(f"expected at most {MOST_WEIGHTS:,} weights; got {count:,}")

    def check_more(self) -> None:
        """Raise for what the types of the fields do not say."""

    def least_weights(self) -> int:
        """A lower bound of the number of weights, known before any memory is taken."""
        return 0

    def check_stages(self, *names: str) -> None:
        """Raise unless all of these fields have one entry a stage, and there is a stage."""
        lengths = [len(getattr(self, name)) for name in names]
        if len(set(lengths)) > 1 or not lengths[0]:
            got = " and ".join(map(str, lengths))
            raise ValueError(f"{' and '.join(names)} need one entry for each stage; got {got}")


def parameter_count(net: nn.Module) -> int:
    """Weights and biases, those that a mask holds at 0 left out."""
    masks = storage.masks_of(net)
    counted = ((p.numel(), masks.get(name)) for name, p in net.named_parameters())
    return sum(size if mask is None else int(mask.sum()) for size, mask in counted)


class Model(nn.Module, ABC):
    """A network, called ``kind`` in files, for images (C, H, W) with ``levels`` grey levels."""

    kind: ClassVar[str] = "model"
    kinds: ClassVar[dict[str, type["Model"]]] = {}
    schema: ClassVar[Any]  # of what `describe` gives
    scores: dict[str, Tensor] | None = None  # of held-out images, see `analysis.score.Reference`
    parameter_count = parameter_count

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            cls.kinds[cls.kind] = cls

    def __init__(self, shape: Shape, levels: int) -> None:
        super().__init__()
        self.shape: Shape = shape
        self.levels: int = check(levels, Levels, "levels")
        self.about: dict[str, Any] = {}  # what its file says beside the model, such as the data

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The configuration as it is saved, as plain data."""

    @classmethod
    @abstractmethod
    def from_description(cls, config: dict[str, Any]) -> Self:
        """A model with fresh weights, from what `describe` gives, checked by the schema."""

    @classmethod
    def least_weights(cls, config: dict[str, Any]) -> int:
        """A lower bound of the number of weights of what `describe` gives."""
        return config["net"].least_weights()  # type: ignore[no-any-return]

    def save(self, folder: str | Path, **extra: Any) -> None:
        """Write ``model.safetensors`` and ``config.json``, with ``extra`` in it, into a folder."""
        storage.save_scores(folder, None)  # never those of other weights
        storage.save_model(folder, self, {**self.describe(), **extra})
        storage.save_scores(folder, self.scores)

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
            known = check(config, found.schema)
            storage.check_size(folder / storage.WEIGHTS, found.least_weights(known))
            model = found.from_description(known)
        except ValueError as error:
            raise storage.ModelFileError(f"{folder / storage.CONFIG}: {error}") from error
        storage.load_weights(folder, model)
        model.scores = storage.load_scores(folder)
        model.about = {key: value for key, value in config.items() if key not in model.describe()}
        return model.eval()

    @classmethod
    def from_pretrained(cls, name: str) -> Self:
        """The model of that name that ships with the package; user/model is one of the hub."""
        return cls.load(name if "/" in name else storage.shipped(name, cls.kind))

    def push_to_hub(
        self, name: str, figures: Mapping[str, object] | None = None, private: bool = False
    ) -> str:
        """Upload the model as user/model to the Hugging Face hub; gives the page's address.

        Its card has ``figures``, such as {"bits per dimension": 0.98}, and samples of a density
        model. Log in before, with ``hf auth login`` or HF_TOKEN.
        """
        from mintnet.models import hub

        return hub.push(self, name, figures or {}, private)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def check_images(self, images: Tensor, floating: bool = True) -> None:
        """Raise unless these are images for this model: bytes, or also ``floating`` numbers."""
        name = type(self).__name__
        if not isinstance(images, Tensor):
            raise TypeError(f"{name} takes tensors (torch.from_numpy); got {type(images).__name__}")
        if (got := tuple(images.shape))[1:] != self.shape:
            expected = f"(batch, {', '.join(map(str, self.shape))})"
            more = f", made for {self.shape[0]} channels" if got[1:2] != self.shape[:1] else ""
            raise ValueError(f"{name} takes images of shape {expected}{more}; got {got}")
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


def choose(name: str, presets: dict[str, Any], suffix: str = "") -> str:
    """The preset that is meant, without its suffix; raises with the list of all."""
    short = name.removesuffix(suffix)
    if short not in presets:
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(presets)}")
    return short
