"""`mintnet predict` and `explain`: what a classifier says about pictures, and what it sees."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from mintnet.analysis import Explainer
from mintnet.analysis.explain import Path as PicturePath
from mintnet.cli.command import File, FlawedResult, Folder, ModelCommand, Name, SolverCommand
from mintnet.cli.model import OpenModel
from mintnet.cli.output import Tasks, console, output_place, strong, write
from mintnet.data.folder import pictures
from mintnet.figures.classification import explanation_picture
from mintnet.models import Classifier, Flow
from mintnet.models.storage import SHIPPED

load_flow = cache(Flow.load)


class Predict(ModelCommand, then="mintnet explain {model} {first}"):
    """Say what pictures show: for each the most probable class, and its probability.

    Pictures are cropped to their central square and resized to what the classifier was trained on.
    One that cannot be read is named in a line, and the others are classified all the same.
    """

    pictures: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PICTURE…")]
    """Picture files, folders of them, or places in a data set: mnist:test:7, or test:7."""
    data: Folder = None  # Folder with the data set's files, for places in it.

    def run(self) -> dict[str, Any]:
        if not self.pictures:
            raise ValueError("name at least one PICTURE: a file, a folder, or a place as test:7")
        out, opened, found, broken = console(), self.open(), [], 0
        if not (names := opened.class_names()):
            raise ValueError(f"{self.model} is a density model; take one such as mnist-classifier")
        scores = opened.model.classify if isinstance(opened.model, Flow) else opened.model
        for name in self._files():
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
            raise ValueError(f"none of {broken} pictures could be read; name other files")
        if not isinstance(opened.model, Classifier):  # others have no way back
            self.then = "mintnet report {model}"
        return {"pictures": found, "not_read": broken, "first": found[0]["picture"]}

    def _files(self) -> Iterator[str]:
        for name in self.pictures:
            path = Path(name).expanduser()
            yield from map(str, pictures(path)) if path.is_dir() else (name,)


def print_answer(out: Console, opened: OpenModel, name: str, image: Tensor, logits: Tensor) -> str:
    """Print the most probable class, with a warning if the picture looks wrong; gives its name."""
    best, probability = int(logits.argmax()), float(logits.softmax(0).max())
    label = opened.class_names()[best]
    out.print(f"{strong(name)}: {escape(label)}, {100 * probability:.1f} %")
    usual = getattr(getattr(opened.model, "pixels", None), "mean", None)  # of training images
    if usual is not None:
        known, mean = np.mean(usual), float(image.double().mean()) / (opened.model.levels - 1)
        if abs(mean - known) > abs(1 - mean - known) + 0.25:
            words = f"  {name} looks inverted: its background is bright where that of the training "
            words += "images is dark, or the other way round. Invert it and try again."
            out.print(words, style="yellow", markup=False)
    data = opened.config.get("data")
    folder = SHIPPED.get(str(data.get("name"))) if isinstance(data, dict) else None
    flow = None if folder is None else load_flow(folder)
    if flow is not None and flow.scores is not None and flow.shape == image.shape:
        with torch.no_grad():
            bits, held_out = float(flow.bits_per_dim(image[None])), flow.scores["statistics"][:, 0]
        low, high = float(held_out.min()), float(held_out.max())
        if not low / 2 <= bits <= 2 * high:
            words = f"  {name} is unlike the training images: {bits:.1f} bits per dimension, where "
            words += f"others like them have {low:.1f} to {high:.1f}. The percentage says little."
            out.print(words, style="yellow", markup=False)
    return label


class Explain(SolverCommand, then="mintnet explain {model} IMAGE --towards CLASS"):
    """Map a classifier's features back to pictures, and see what it sees.

    For each IMAGE one picture: its features mapped back; the way towards another picture with all
    logits held, which the classifier cannot tell apart; the least change towards another class.
    All figures are recomputed from the clipped 8-bit pictures shown.
    """

    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGE…")]
    """Picture files, or places in a data set: mnist:test:7, or test:7."""
    towards: Name = None  # The class to go to, by name or number; else the second likeliest.
    partner: Name = None  # The picture to go to with logits held; else a test image of that class.
    data: Folder = None  # Folder with the data set's files, for places in it and the partner.
    out: File = None  # The picture; explanation.png if not given, numbered if taken or for more.

    def run(self) -> dict[str, Any]:
        if not self.images:
            raise ValueError("name at least one IMAGE: a picture file, or a place such as test:7")
        first = output_place(self.out, "explanation.png", [".png"])
        stems = [first.stem, *(f"{first.stem}-{k}" for k in range(2, len(self.images) + 1))]
        places = [output_place(first.with_stem(stem), "") for stem in stems]
        out, opened = console(), self.open()
        explainer = Explainer(opened.classifier, self.chosen_solver())
        loaded = [opened.picture(name, self.data) for name in self.images]
        names, results, failed, total = opened.class_names(), [], 0, 0
        for name, image, place in zip(self.images, loaded, places, strict=True):
            paths = [explainer.there_and_back(image)]
            print_answer(out, opened, name, image, paths[0].start.logits)
            label = self._label(opened, paths[0].start.logits)
            partner = self._partner(out, opened, image, label)
            with Tasks(out) as task:
                task("what the classifier cannot tell apart")
                paths.append(explainer.held(image, partner))
                task(f"the way to class {label}")
                paths.append(explainer.towards(image, label))
            failed += sum(_print_path(out, path, names) for path in paths)
            total += sum(len(path.steps) for path in paths)
            title = f"{name}: what {opened.name} sees"
            write(out, place, explanation_picture(paths, opened.model.levels, names, title))
            results.append({"image": name, "paths": [path.to_dict() for path in paths]})
        figures = {"model": self.model, "precision": "float64", "images": results}
        if failed:
            remedy = "use --solver auto" if self.solver != "auto" else "the picture says which"
            words = f"{failed} of {total} inversions are not verified, and not shown; {remedy}"
            raise FlawedResult(words, figures)
        return figures

    def _label(self, opened: OpenModel, logits: Tensor) -> int:
        first, second, *_ = logits.argsort(descending=True).tolist()
        wanted = opened.label_of(self.towards, "--towards")
        if wanted == first:
            raise ValueError(f"--towards is not the predicted class, {first}; name another")
        return int(second if wanted is None else wanted)

    def _partner(self, out: Console, opened: OpenModel, image: Tensor, label: int) -> Tensor:
        """Another picture to go to: the nearest test image of the class, where there is one."""
        if self.partner is not None:
            return opened.picture(self.partner, self.data)
        data = opened.images(self.data)
        if data.labels is None or not bool((data.labels == label).any()):
            raise ValueError(f"{data.name} has no class {label}; name a picture with --partner")
        places = (data.labels == label).nonzero().flatten()
        distance = (data.images[places].double() - image.double()).square().flatten(1).sum(1)
        place = int(places[distance.argmin()])
        out.print(f"The other picture is {data.name}:test:{place}.", markup=False)
        return data.images[place]


def _print_path(out: Console, path: PicturePath, names: tuple[str, ...]) -> int:
    """Print what the last picture of a path is; gives how many of them are not verified."""
    last, lost = path.steps[-1], sum(not step.verified for step in path.steps)
    words = f"{lost} of {len(path.steps)} not verified"
    if not lost:
        words = f"at last {names[last.predicted]}, {100 * last.probability:.1f} %, pixels changed "
        words += f"by {100 * last.moved:.1f} % of their range"
    out.print(f"  {path.title}: {words}", style="red" if lost else "", markup=False)
    return lost
