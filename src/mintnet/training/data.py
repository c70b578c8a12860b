"""The images that a model was made for."""

from __future__ import annotations

from pathlib import Path

from mintnet.data import ImageData, load
from mintnet.models.storage import read_config
from mintnet.training.files import RunError


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
    config = read_config(folder, "flow")
    known = config.get("data")
    known = known if isinstance(known, dict) else {}
    name = name or known.get("name")
    if name is None:
        raise RunError(f"{folder} does not say which data set it belongs to; give --data-set")
    if name == known.get("name"):
        data = data or known.get("folder")
    if name != "folder":
        return load(name, split, data)
    channels, height, _ = config["net"]["shape"]
    return load(name, split, data, size=height, grey=channels == 1)
