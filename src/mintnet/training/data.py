"""Which images a run sees, and in which order: pure functions of seed, epoch and place.

Nothing here has a state, so a run that is resumed at a step continues as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mintnet.data import NAMES, ImageData, load, mnist_slice
from mintnet.data.download import DOWNLOADED
from mintnet.training.folder import RunError
from mintnet.training.recipe import Recipe, data_and_kind


def stream(seed: int, purpose: str) -> int:
    """A seed of its own for each use of a run's seed."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


@lru_cache(maxsize=1)
def permutation(seed: int, epoch: int, count: int) -> Tensor:
    """The order of an epoch, (count,) int64."""
    generator = torch.Generator().manual_seed(stream(seed, f"order {epoch}"))
    return torch.randperm(count, generator=generator)


class Order:
    """Which images of a data set a run trains on in each step, and which it holds out.

    Examples:
        >>> order = Order(Recipe("digits", batch_size=4, validation=0.2), count=10)
        >>> order.per_epoch, len(order.held), order(0).tolist() != order(2).tolist()
        (2, 2, True)
    """

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.seed = recipe.seed
        self.training, self.held = held_out(count, recipe.validation)
        self.batch_size = min(recipe.batch_size, len(self.training))
        self.per_epoch = len(self.training) // self.batch_size

    def __call__(self, step: int) -> Tensor:
        """Places of the images of a step, (batch_size,)."""
        epoch, batch = divmod(step, self.per_epoch)
        order = permutation(self.seed, epoch, len(self.training))
        return self.training[order[batch * self.batch_size :][: self.batch_size]]


def held_out(count: int, share: float) -> tuple[Tensor, Tensor]:
    """Places of training images, and of those held out, the same for every seed; both ascending."""
    kept = round(count * share)
    generator = torch.Generator().manual_seed(stream(0, "held out"))
    order = torch.randperm(count, generator=generator)
    return order[kept:].sort().values, order[:kept].sort().values


def part_of(batch: Tensor, rank: int, world: int) -> Tensor:
    """The part of a batch that belongs to one of ``world`` processes; sizes differ by at most 1.

    Examples:
        >>> [part_of(torch.arange(5), rank, 2).tolist() for rank in (0, 1)]
        [[0, 1, 2], [3, 4]]
    """
    return batch.tensor_split(world)[rank]


def images_for(
    config: Mapping[str, Any],
    model: str,
    split: str = "test",
    name: str | None = None,
    data: str | Path | None = None,
    few: bool = False,
) -> ImageData:
    """Images for the model with this configuration: those it was trained on, or others by name.

    ``model`` is its name in messages. With ``few``, where no folder of MNIST is known, the 128
    test images that come with the package.

    Examples:
        >>> len(images_for({"data": {"name": "mnist"}}, "a model", few=True))
        128
    """
    own, place, version = _known(config)
    name = name or own
    if name not in NAMES:
        told = "it does not say which data set" if name is None else f"it says {name!r}"
        raise RunError(
            f"{model}: on which images was it trained? {told}; name them with --data-set, one of "
            f"{', '.join(NAMES)}"
        )
    if name == own:
        data = data or place
    if few and name == "mnist" and split == "test" and data is None:
        return mnist_slice()
    channels, height, _ = (config.get("pixels") or config["net"])["shape"]
    options = {"size": height, "grey": channels == 1} if name == "folder" else {}
    images = load_images(name, split, data, **options)
    if name == own and version not in (None, images.name):
        raise RunError(
            f"{model} was trained on {version}, and the files in {data} are {images.name}; never "
            f"mix their figures: name the folder of {version} with --data"
        )
    return images


def load_images(name: str, split: str, data: str | Path | None, **options: Any) -> ImageData:
    """As `load`, with the option's name in the message where the folder is missing."""
    if name in NAMES and name != "digits":
        if data is None:
            fetch = f"; mintnet data get {name} DIR fetches them" if name in DOWNLOADED else ""
            raise RunError(f"{name}: say with --data where its files are{fetch}")
        if not Path(data).expanduser().is_dir():
            raise RunError(
                f"{name}: there is no folder {data}; say with --data where its files are"
            )
    return load(name, split, data, **options)


def describe(recipe: Recipe, data: ImageData) -> dict[str, Any]:
    """Which images a run is about, as plain data, with a checksum over about 1,000 of them."""
    some = data.images[:: max(1, len(data) // 1000)].contiguous().numpy().data
    return {
        "name": data_and_kind(recipe.preset)[0],
        "version": data.name,
        "folder": recipe.data,
        "size": recipe.size,
        "grey": recipe.grey,
        "images": len(data),
        "shape": list(data.shape),
        "levels": data.levels,
        "checksum": zlib.crc32(some),
    }


def _known(config: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """The model's own data set, the folder with its files, and its version where it has some."""
    facts = config.get("data")
    if not isinstance(facts, dict):
        facts = {"name": facts}
    name = facts.get("name") or data_and_kind(str(config.get("preset") or ""))[0] or None
    version = facts.get("version")
    if name not in NAMES and str(name).rpartition("-")[0] in NAMES:  # as older runs have it
        name, version = str(name).rpartition("-")[0], name
    return name, facts.get("folder"), version
