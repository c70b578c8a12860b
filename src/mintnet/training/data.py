"""The images that a model was made for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mintnet.data import NAMES, ImageData, load, mnist_slice
from mintnet.data.download import DOWNLOADED
from mintnet.models.storage import read_config
from mintnet.training.files import RunError
from mintnet.training.recipe import data_and_kind


def data_of(
    folder: str | Path,
    split: str = "test",
    name: str | None = None,
    data: str | Path | None = None,
) -> ImageData:
    """Images for the model in a folder: those it was trained on, where nothing else is said.

    Args:
        folder: of a saved model, which remembers its data set.
        split: ``train`` or ``test``.
        name: the data set, if it is not the model's own.
        data: where its files are, if they are not where they were.

    Examples:
        >>> import tempfile
        >>> from mintnet.models import Flow
        >>> with tempfile.TemporaryDirectory() as model:
        ...     Flow.preset("digits").save(model, data={"name": "digits"})
        ...     len(data_of(model, "test"))
        360
    """
    return images_for(read_config(folder), str(folder), split, name, data)


def images_for(
    config: Mapping[str, Any],
    model: str,
    split: str = "test",
    name: str | None = None,
    data: str | Path | None = None,
    few: bool = False,
) -> ImageData:
    """As `data_of`, for a model whose configuration is at hand; ``model`` is for messages.

    With ``few``, to look at some and not for a figure: where no folder is known, the 128 test
    images of MNIST that come with the package.

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
