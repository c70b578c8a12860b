"""Load a model of any kind by its name or its folder."""

from __future__ import annotations

from pathlib import Path

from mintnet.models.classifier import Classifier
from mintnet.models.flow import Flow
from mintnet.models.resnet import ResNet
from mintnet.models.storage import CONFIG, ModelFileError, locate, read_kind

__all__ = ["AnyModel", "load_flow", "load_model", "locate"]

AnyModel = Flow | Classifier | ResNet
KINDS: dict[str, type[AnyModel]] = {kind.kind: kind for kind in (Flow, Classifier, ResNet)}

load_flow = Flow.load


def load_model(name: str | Path) -> AnyModel:
    """The model of that name or in that folder, whatever its kind, see `locate`."""
    folder = locate(name)
    kind = read_kind(folder)
    if kind not in KINDS:
        raise ModelFileError(
            f"{folder / CONFIG} names a kind of model, {kind!r}, that is none of {', '.join(KINDS)}"
        )
    return KINDS[kind].load(folder)
