"""`mintnet explain`: what a classifier sees in pictures, mapped back to pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape

from mintnet.cli.command import File, FlawedResult, Folder, ModelCommand, Name, Whole, origin
from mintnet.cli.output import (
    Tasks,
    check_output,
    console,
    free_place,
    strong,
    write_json,
    write_picture,
    written_words,
)

if TYPE_CHECKING:
    from torch import Tensor

    from mintnet.analysis.explain import Explainer
    from mintnet.analysis.explain import Path as PicturePath
    from mintnet.cli.model import OpenModel


@dataclass(kw_only=True)
class Explain(ModelCommand):
    """Map a classifier's features back to pictures, and move them to see what it sees.

    For each IMAGE one picture: its features mapped back; features moved along directions that
    the logits do not see; the way towards another picture with all logits held; the least change
    towards another class. All figures are recomputed from the clipped 8-bit pictures shown.
    """

    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGE…")]
    """Picture files of the classifier's size, or places in a data set: mnist:test:7, or test:7."""
    towards: Whole = None
    """The class to go to; the second most probable if not given."""
    partner: Name = None
    """The picture to go to with logits held; a test image of the other class if not given."""
    pictures: int = 5
    """Pictures along each path."""
    rounds: int = 12
    """The most Gauss-Newton steps between two pictures."""
    smooth: float = 1.0
    """Prefer smooth changes: the width in pixels; 0 for none."""
    data: Folder = None
    """Folder with the data set's files, for places in it and to choose a partner from."""
    out: File = None
    """The picture; explanation.png if not given, numbered if that is taken; -2, -3, … is put into
    the name for further images. Figures go to a .json beside it."""

    def run(self) -> dict[str, Any]:
        from mintnet.analysis import Explainer
        from mintnet.cli.pictures import load_picture
        from mintnet.figures.explanation import explanation_picture

        first = free_place(self.out, "explanation.png")
        self._check(first)
        out, opened = console(), self.open()
        explainer = Explainer(opened.classifier, self.chosen_solver(), self.smooth, self.rounds)
        loaded = [load_picture(opened, name, self.data) for name in self.images]
        names, results, drawn = opened.class_names(), [], []
        for name, image, place in zip(self.images, loaded, self._places(first), strict=True):
            with Tasks(out) as task:
                paths, partner, told = self._paths(opened, explainer, image, task)
            title = f"{name}: what {opened.name} sees"
            picture = explanation_picture(paths, opened.model.levels, names, title, partner)
            written, words = write_picture(picture, place)
            _print(out, name, paths, names)
            out.print(f"{told}\n{words}" if told else words)
            drawn += [step for path in paths for step in path.steps]
            results.append(
                {"image": name, "picture": written, "paths": [path.to_dict() for path in paths]}
            )
        figures = {"model": self.model, "precision": "float64", "images": results}
        words = written_words(first.with_suffix(".json"))
        write_json(first.with_suffix(".json"), {**origin(self), **figures})
        out.print(words)
        if failed := sum(not step.verified for step in drawn):
            raise FlawedResult(
                f"{failed} of {len(drawn)} inversions are not verified, and not shown; "
                + ("use --solver auto" if self.solver != "auto" else "the picture says which"),
                figures,
            )
        return figures

    def _places(self, first: Path) -> list[Path]:
        others = range(2, len(self.images) + 1)
        return [first, *(first.with_stem(f"{first.stem}-{number}") for number in others)]

    def _check(self, first: Path) -> None:
        if not self.images:
            raise ValueError("name at least one IMAGE: a picture file, or a place such as test:7")
        if self.pictures < 1 or self.rounds < 1:
            raise ValueError(
                f"--pictures and --rounds are at least 1; got {self.pictures} and {self.rounds}"
            )
        if not 0 <= self.smooth < float("inf"):
            raise ValueError(f"--smooth is a width in pixels, 0 or more; got {self.smooth}")
        for place in self._places(first):
            check_output(place, [".png"])
        check_output(first.with_suffix(".json"))

    def _paths(
        self, opened: OpenModel, explainer: Explainer, image: Tensor, task: Tasks
    ) -> tuple[list[PicturePath], Tensor, str]:
        """The answers, the partner, and where that came from."""
        back = explainer.there_and_back(image)
        order = back.start.logits.argsort(descending=True).tolist()
        label = order[1] if self.towards is None else self.towards
        if not 0 <= label < len(order) or label == order[0]:
            raise ValueError(
                f"--towards is a class from 0 to {len(order) - 1} that is not the predicted one, "
                f"{order[0]}; got {label}"
            )
        partner, told = self._partner(opened, image, label)
        shares = [(k + 1) / self.pictures for k in range(self.pictures)]
        moves = [0.2 * 0.5 ** (self.pictures - 1 - k) for k in range(self.pictures)]
        rows: dict[str, Callable[[], PicturePath]] = {
            "moving freely with logits unchanged": lambda: explainer.free(image, partner, moves),
            "along pictures with logits held": lambda: explainer.held(image, partner, shares),
            f"moving freely towards class {label}": lambda: explainer.free_towards(
                image, label, moves
            ),
            f"along pictures towards class {label}": lambda: explainer.towards(
                image, label, shares
            ),
        }
        paths = [back]
        for number, (what, draw) in enumerate(rows.items(), 2):
            task(f"row {number} of 5: {what}")
            paths.append(draw())
        return paths, partner, told

    def _partner(self, opened: OpenModel, image: Tensor, label: int) -> tuple[Tensor, str]:
        """Another picture to go to: the nearest test image of the class, where there is one."""
        from mintnet.cli.pictures import load_picture

        if self.partner is not None:
            return load_picture(opened, self.partner, self.data), ""
        stands_in = "The picture upside down stands in for another one"
        try:
            data = opened.images(self.data)
        except ValueError as error:
            return image.flip(1), escape(f"{stands_in}: {error}.")
        places = None if data.labels is None else (data.labels == label).nonzero().flatten()
        if places is None or not len(places):
            return image.flip(1), escape(f"{stands_in}: {data.name} has no class {label}.")
        distance = (data.images[places].double() - image.double()).square().flatten(1).sum(1)
        place = int(places[distance.argmin()])
        return data.images[place], f"The other picture is {escape(data.name)}:test:{place}."


def _print(out: Console, name: str, paths: list[PicturePath], names: tuple[str, ...]) -> None:
    """A line for each path: what its last picture is, and what is wrong with the path."""
    start = paths[0].start
    out.print(f"{strong(name)}: {escape(names[start.predicted])}, {100 * start.probability:.1f} %")
    for path in paths:
        lost = sum(not step.verified for step in path.steps)
        if lost:
            out.print(f"  {path.title}: {lost} of {len(path.steps)} not verified", style="red")
        elif not path.steps or not all(step.reached for step in path.steps):
            out.print(f"  {path.title}: {path.note}", style="yellow")
        else:
            last = path.steps[-1]
            out.print(
                f"  {path.title}: at last {escape(names[last.predicted])}, "
                f"{100 * last.probability:.1f} %, pixels changed by {100 * last.moved:.1f} % of "
                f"their range, {100 * last.clipped:.1f} % of them clipped"
            )
