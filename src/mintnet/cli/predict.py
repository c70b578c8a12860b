"""`mintnet predict`: what a classifier says about pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from mintnet.cli.command import Command, Folder, Model
from mintnet.cli.model import OpenModel, open_model
from mintnet.cli.output import console, strong
from mintnet.models import Classifier, Flow
from mintnet.models.base import Model as AnyModel


@dataclass(kw_only=True)
class Predict(Command):
    """Say what pictures show: for each the most probable class, and its probability.

    Pictures are cropped to their central square and resized to what the classifier was trained on.
    One that cannot be read is named in a line, and the others are classified all the same.
    """

    model: Model
    """A classifier: a run folder, a saved model folder, or the name of a shipped model."""
    pictures: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PICTURE…")]
    """Picture files, folders of them, or places in a data set: mnist:test:7, or test:7."""
    data: Folder = None
    """Folder with the data set's files, for places in it."""
    device: str = "auto"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    then = "mintnet explain {model} {first}"

    def run(self) -> dict[str, Any]:
        if not self.pictures:
            raise ValueError("name at least one PICTURE: a file, a folder, or a place as test:7")
        out, opened, found, broken = console(), open_model(self.model, self.device), [], 0
        names = opened.class_names()
        if not names:
            raise ValueError(f"{self.model} is a density model, where a classifier is expected")
        scores = opened.model.classify if isinstance(opened.model, Flow) else opened.model
        for name in _files(self.pictures):
            try:
                image = opened.picture(name, self.data)
            except (ValueError, OSError) as error:
                broken += 1
                out.print(" ".join(str(error).split()), style="red", markup=False)
                continue
            with torch.no_grad():
                logits = scores(image[None].to(opened.model.device))[0].double().cpu()
            best = print_answer(out, opened, name, image, logits)
            probabilities = dict(zip(names, logits.exp().tolist(), strict=True))
            found.append({"picture": name, "class": best, "probabilities": probabilities})
        if not found:
            raise ValueError(f"none of {broken} pictures could be read")
        if not isinstance(opened.model, Classifier):  # others have no way back
            self.then = "mintnet report {model}"
        return {"pictures": found, "not_read": broken, "first": found[0]["picture"]}


def print_answer(out: Console, opened: OpenModel, name: str, image: Tensor, logits: Tensor) -> str:
    """Print the most probable class, a warning where black and white look exchanged; its name."""
    best, probability = int(logits.argmax()), float(logits.softmax(0).max())
    label = opened.class_names()[best]
    out.print(f"{strong(name)}: {escape(label)}, {100 * probability:.1f} %")
    if looks_inverted(opened.model, image):
        out.print(
            f"  [yellow]{escape(name)} looks inverted: its background is bright where that of the "
            "training images is dark, or the other way round. Invert it and try again.[/]"
        )
    return label


def looks_inverted(model: AnyModel, image: Tensor) -> bool:
    """Whether the mean of the training images is nearer to that of the inverted picture, by far.

    Examples:
        >>> from mintnet import Classifier
        >>> model, white = Classifier.preset("mnist"), torch.full((1, 28, 28), 250).byte()
        >>> looks_inverted(model, white), looks_inverted(model, 255 - white)
        (True, False)
    """
    if (pixels := getattr(model, "pixels", None)) is None or not hasattr(pixels, "mean"):
        return False
    known, mean = torch.tensor(pixels.mean).mean(), image.double().mean() / (model.levels - 1)
    return bool((mean - known).abs() > (1 - mean - known).abs() + 0.25)


def _files(names: tuple[str, ...]) -> Iterator[str]:
    """The pictures that are meant, those in folders one by one."""
    from mintnet.data.folder import pictures

    for name in names:
        path = Path(name).expanduser()
        yield from map(str, pictures(path)) if path.is_dir() else (name,)
