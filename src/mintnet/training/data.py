"""Which images a run sees, in which order and how augmented: functions of seed, epoch and place.

Nothing here has a state: a run that is resumed continues as if it had never stopped, and a step can
be captured. Shapes: images (batch, C, H, W); index (batch,): places in the data set.
"""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.data import NAMES, ImageData, load, mnist_slice
from mintnet.models.noise import uniform_noise
from mintnet.models.storage import did_you_mean
from mintnet.training.folder import RunError
from mintnet.training.recipe import Recipe, data_and_kind


def stream(seed: int, purpose: str) -> int:
    """A seed of its own for each use of a run's seed."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8], "big") >> 2


@lru_cache(maxsize=1)
def permutation(seed: int, purpose: str, count: int) -> Tensor:
    """An order of so many images, (count,) int64."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(stream(seed, purpose)))


class Order:
    """Which images of a data set a run trains on in each step, and which it holds out."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.seed = recipe.seed
        self.training, self.held = held_out(count, recipe.validation)
        self.batch_size = min(recipe.batch_size, len(self.training))
        self.per_epoch = len(self.training) // self.batch_size

    def __call__(self, step: int) -> Tensor:
        """Places of the images of a step, (batch_size,)."""
        epoch, batch = divmod(step, self.per_epoch)
        order = permutation(self.seed, f"order {epoch}", len(self.training))
        return self.training[order[batch * self.batch_size :][: self.batch_size]]


def held_out(count: int, share: float) -> tuple[Tensor, Tensor]:
    """Places of training images, and of those held out, the same for every seed; both ascending."""
    kept, order = round(count * share), permutation(0, "held out", count)
    return order[kept:].sort().values, order[:kept].sort().values


def augmented(images: Tensor, kind: str, seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The images as a training step sees them; ``kind`` is the recipe's augmentation."""
    kinds, (count, _, h, w) = kind.split("-"), images.shape
    sample, rows, columns = (torch.arange(n, device=images.device) for n in (count, h, w))
    if "crop" in kinds:  # up to 4 pixels either way, or a seventh of small ones, on black
        padding = min(4, h // 7)
        dice = uniform_noise(stream(seed, "crop"), epoch, index, (2, 1), torch.float64)
        shift = (dice * (2 * padding + 1)).long()  # 0 … 2 · padding
        y, x = (rows + shift[:, 0])[:, :, None], (columns + shift[:, 1])[:, None, :]
        images = F.pad(images, (padding,) * 4)[sample[:, None, None], :, y, x].permute(0, 3, 1, 2)
    if "flip" in kinds:  # about half of them, left to right
        coin = uniform_noise(stream(seed, "flip"), epoch, index, (1, 1, 1)) < 0.5
        images = torch.where(coin, images.flip(-1), images)
    if "cutout" in kinds:  # 8 × 8 pixels around a random one become black
        centre = uniform_noise(stream(seed, "cutout"), epoch, index, (2, 1))
        y = (rows + 0.5 - centre[:, 0] * h).abs() < 4
        x = (columns + 0.5 - centre[:, 1] * w).abs() < 4
        images = images.masked_fill((y[:, :, None] & x[:, None, :])[:, None], 0)
    return images


def images_for(
    config: Mapping[str, Any],
    model: str,  # its name in messages
    split: str = "test",
    name: str | None = None,
    data: str | Path | None = None,
) -> ImageData:
    """Images for the model with this configuration: those it was trained on, or others by name."""
    facts = config.get("data")
    facts = facts if isinstance(facts, dict) else {"name": facts}
    own = facts.get("name") or data_and_kind(str(config.get("preset") or ""))[0] or None
    name, version = own if name is None else name, facts.get("version")
    if name not in NAMES:
        told = "does not say on which images it was trained" if name is None else f"has no {name!r}"
        choices = f"name them with --data-set, one of {', '.join(NAMES)}"
        raise RunError(f"{model} {told}; {choices}{did_you_mean(name or '', NAMES)}")
    if name == "digits" and data is not None:
        raise RunError(f"the digits come with the package: leave --data {data} out")
    if name == own:
        data = data or facts.get("folder")
    if name == "mnist" and split == "test" and data is None:
        return mnist_slice()  # 128 images that come with the package
    channels, height, _ = (config.get("pixels") or config["net"])["shape"]
    options = {"size": height, "grey": channels == 1} if name == "folder" else {}
    images = load(name, split, data, **options)
    if name == own and version not in (None, images.name):
        words = f"{model} was trained on {version}, and the files in {data} are {images.name}"
        raise RunError(f"{words}; never mix their figures: name its folder with --data")
    known = facts.get("classes") or images.classes
    if images.labels is None or images.classes in ((), tuple(known)):
        return images  # without names, labels are numbers
    if unknown := set(images.classes).difference(known):
        raise RunError(f"{model} knows the labels {', '.join(known)}; got {', '.join(unknown)}")
    places = torch.tensor([known.index(name) for name in images.classes])
    return replace(images, labels=places[images.labels], classes=tuple(known))


def describe(recipe: Recipe, data: ImageData) -> dict[str, Any]:
    """Which images a run is about, as plain data, with a checksum over about 1,000 of them."""
    some = data.images[:: max(1, len(data) // 1000)].contiguous().numpy().data
    facts: dict[str, Any] = {"name": data_and_kind(recipe.preset)[0], "version": data.name}
    facts |= {"folder": recipe.data, "size": recipe.size, "grey": recipe.grey, "images": len(data)}
    facts |= {"shape": list(data.shape), "levels": data.levels, "checksum": zlib.crc32(some)}
    return {**facts, "classes": list(data.classes) if recipe.labels else []}
