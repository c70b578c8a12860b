"""Find a model by its name or its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mintnet.models.classifier import Classifier
from mintnet.models.flow import Flow
from mintnet.models.resnet import ResNet
from mintnet.models.storage import CONFIG, SHIPPED, ModelFileError, read_kind

PARTS = ("last", "best")


def locate(name: str | Path) -> Path:
    """The model folder meant by a run folder, a saved model folder or a shipped model's name.

    A run folder stands for its last weights.

    Examples:
        >>> locate("nowhere/at-all")
        Traceback (most recent call last):
        mintnet.models.storage.ModelFileError: no model nowhere/at-all: expected a run folder, ...
    """
    path = Path(name).expanduser()
    for folder in (path, path / PARTS[0]):
        if (folder / CONFIG).is_file():
            return folder
    if str(name) in SHIPPED:
        return SHIPPED[str(name)]
    shipped = f"the name of a shipped model ({', '.join(SHIPPED) or 'there are none yet'})"
    if (path / "run.json").is_file():
        raise ModelFileError(f"{path} is a run that has not saved any weights yet")
    if path.is_dir():
        raise ModelFileError(
            f"{path} holds no model: there is no {CONFIG} in it; expected a run folder, a saved "
            f"model folder or {shipped}"
        )
    raise ModelFileError(
        f"no model {name}: expected a run folder, a saved model folder or {shipped}"
    )


def load_flow(name: str | Path) -> Flow:
    """The density model of that name or in that place, see `locate`.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run:
        ...     Flow.preset("digits").save(f"{run}/last")
        ...     load_flow(run).shape
        (1, 8, 8)
    """
    return Flow.load(locate(name))


AnyModel = Flow | Classifier | ResNet


def load_model(name: str | Path) -> AnyModel:
    """The model of that name or in that place, whatever it is, see `locate`.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Classifier.preset("digits").save(folder)
        ...     type(load_model(folder)).__name__
        'Classifier'
    """
    folder = locate(name)
    kinds: dict[str, Callable[[Path], AnyModel]] = {
        "flow": Flow.load,
        "classifier": Classifier.load,
        "resnet": ResNet.load,
    }
    kind = read_kind(folder)
    if kind not in kinds:
        raise ModelFileError(
            f"{folder / CONFIG} names a kind of model, {kind!r}, that is none of {', '.join(kinds)}"
        )
    return kinds[kind](folder)
