"""`mintnet explain`: what a classifier sees in pictures, mapped back to pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from mintnet.analysis import Explainer
from mintnet.analysis.explain import Path as PicturePath
from mintnet.cli.command import File, FlawedResult, Folder, ModelCommand, Name, Whole
from mintnet.cli.model import OpenModel
from mintnet.cli.output import Tasks, console, output_place, write
from mintnet.cli.predict import print_answer
from mintnet.figures import explanation_picture


@dataclass(kw_only=True)
class Explain(ModelCommand):
    """Map a classifier's features back to pictures, and see what it sees.

    For each IMAGE one picture: its features mapped back; the way towards another picture with all
    logits held, which the classifier cannot tell apart; the least change towards another class.
    All figures are recomputed from the clipped 8-bit pictures shown.
    """

    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGE…")]
    """Picture files, or places in a data set: mnist:test:7, or test:7."""
    towards: Whole = None
    """The class to go to; the second most probable if not given."""
    partner: Name = None
    """The picture to go to with logits held; a test image of the other class if not given."""
    data: Folder = None
    """Folder with the data set's files, for places in it and to choose a partner from."""
    out: File = None
    """The picture; explanation.png if not given, numbered if that is taken; -2, -3, … is put into
    the name for further images."""

    then = "mintnet explain {model} IMAGE --towards CLASS for the way to another class"

    def run(self) -> dict[str, Any]:
        if not self.images:
            raise ValueError("name at least one IMAGE: a picture file, or a place such as test:7")
        first = output_place(self.out, "explanation.png", [".png"])
        stems = [first.stem, *(f"{first.stem}-{k}" for k in range(2, len(self.images) + 1))]
        places = [output_place(first.with_stem(stem), "") for stem in stems]
        out, opened = console(), self.open()
        explainer = Explainer(opened.classifier, self.chosen_solver())
        loaded = [opened.picture(name, self.data) for name in self.images]
        names, results, drawn = opened.class_names(), [], []
        for name, image, place in zip(self.images, loaded, places, strict=True):
            back = explainer.there_and_back(image)
            print_answer(out, opened, name, image, back.start.logits)
            with Tasks(out) as task:
                paths = [back, *self._paths(out, opened, explainer, image, back, task)]
            title = f"{name}: what {opened.name} sees"
            _print(out, paths, names)
            write(out, place, explanation_picture(paths, opened.model.levels, names, title))
            drawn += [step for path in paths for step in path.steps]
            results.append({"image": name, "paths": [path.to_dict() for path in paths]})
        figures = {"model": self.model, "precision": "float64", "images": results}
        if failed := sum(not step.verified for step in drawn):
            raise FlawedResult(
                f"{failed} of {len(drawn)} inversions are not verified, and not shown; "
                + ("use --solver auto" if self.solver != "auto" else "the picture says which"),
                figures,
            )
        return figures

    def _paths(
        self,
        out: Console,
        opened: OpenModel,
        explainer: Explainer,
        image: Tensor,
        back: PicturePath,
        task: Tasks,
    ) -> list[PicturePath]:
        """The other two answers."""
        order = back.start.logits.argsort(descending=True).tolist()
        label = order[1] if self.towards is None else self.towards
        if not 0 <= label < len(order) or label == order[0]:
            raise ValueError(
                f"--towards is a class from 0 to {len(order) - 1} that is not the predicted one, "
                f"{order[0]}; got {label}"
            )
        partner = self._partner(out, opened, image, label)
        task("what the classifier cannot tell apart")
        held = explainer.held(image, partner)
        task(f"the way to class {label}")
        return [held, explainer.towards(image, label)]

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


def _print(out: Console, paths: list[PicturePath], names: tuple[str, ...]) -> None:
    """A line for each path: what its last picture is, or how many are not verified."""
    for path in paths:
        last, lost = path.steps[-1], sum(not step.verified for step in path.steps)
        if lost:
            out.print(f"  {path.title}: {lost} of {len(path.steps)} not verified", style="red")
        else:
            out.print(
                f"  {path.title}: at last {escape(names[last.predicted])}, "
                f"{100 * last.probability:.1f} %, pixels changed by {100 * last.moved:.1f} % of "
                "their range"
            )
