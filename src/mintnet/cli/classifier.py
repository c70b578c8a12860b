"""CLASSIFIER on the command line: a classifier or a ResNet, and its data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mintnet.cli.model import label_of, pick_device, run_of
from mintnet.data import ImageData
from mintnet.figures.classification import class_names
from mintnet.models import Classifier
from mintnet.models.labelled import ImageClassifier
from mintnet.models.locate import load_model, locate
from mintnet.models.storage import read_config, read_kind

KINDS = ("classifier", "resnet")


@dataclass(frozen=True)
class OpenClassifier:
    """A classifier with its configuration.

    Attributes:
        name: as it was asked for.
        folder: where its weights are.
        model: the classifier.
        config: what was saved with it.
    """

    name: str
    folder: Path
    model: ImageClassifier
    config: dict[str, Any]

    @property
    def invertible(self) -> Classifier:
        """The classifier, if it has an inverse."""
        if not isinstance(self.model, Classifier):
            raise ValueError(
                f"{self.name} is a ResNet, which has no inverse; take an invertible classifier, "
                f"such as one of the preset mnist-classifier"
            )
        return self.model

    @property
    def run(self) -> Path | None:
        """The run folder that the weights belong to, if they do."""
        return run_of(self.name, self.folder)

    @property
    def label(self) -> str:
        """A short name, for titles and files."""
        return label_of(self.name, self.folder)

    @property
    def data_name(self) -> str | None:
        """The data set it was trained on, if that is known."""
        facts = self.config.get("data")
        return facts.get("name") if isinstance(facts, dict) else None

    def class_names(self, data: str | None = None) -> tuple[str, ...]:
        """What its classes are called."""
        return class_names(data or self.data_name or "", self.model.classes)

    def images(
        self, folder: Path | None, name: str | None, split: str = "test", few: bool = False
    ) -> ImageData:
        """Images for this classifier: from the folder given, or from where it was trained."""
        from mintnet.training.data import images_for

        data = images_for(self.config, self.name, split, name, folder, few)
        if data.shape != self.model.shape or data.levels > self.model.levels:
            raise ValueError(
                f"{self.name} is a classifier of images of shape {self.model.shape} with "
                f"{self.model.levels} levels; {data.name} has {data.shape} and {data.levels}"
            )
        return data


def is_classifier(name: str) -> bool:
    """Whether MODEL is a classifier or a ResNet; raises if there is no such model."""
    return read_kind(locate(name)) in KINDS


def open_classifier(name: str, device: str = "auto") -> OpenClassifier:
    """The classifier of that name or in that place, ready for exact arithmetic on a device."""
    folder = locate(name)
    model = load_model(name)
    if not isinstance(model, ImageClassifier):
        raise ValueError(f"{name} is a density model, where a classifier is expected")
    model = model.to(pick_device(device))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return OpenClassifier(name, folder, model, read_config(folder))
