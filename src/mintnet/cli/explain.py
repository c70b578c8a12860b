"""`mintnet explain`: what a classifier sees in pictures, mapped back to pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mintnet.cli.command import FlawedResult, ModelCommand, origin
from mintnet.cli.output import check_output, console, write_json, write_picture, written_words

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from mintnet.cli.classifier import OpenClassifier
    from mintnet.models.explain import Explainer
    from mintnet.models.explain import Path as PicturePath


@dataclass(kw_only=True)
class Explain(ModelCommand):
    """Map a classifier's features back to pictures, and move them to see what it sees.

    For each IMAGE one picture: its features mapped back; features moved along directions that
    the logits do not see; the way towards another picture with all logits held; the least change
    towards another class. All figures are recomputed from the clipped 8-bit pictures shown.
    """

    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGE…")]
    """Picture files of the classifier's size, or places in a data set: mnist:test:7, or test:7."""

    towards: int | None = None
    """The class to go to; the second most probable if not given."""

    partner: str | None = None
    """The picture to go to with logits held; a test image of the other class if not given."""

    steps: int = 5
    """Pictures along each path."""

    rounds: int = 12
    """The most Gauss-Newton steps between two pictures."""

    smooth: float = 1.0
    """Prefer smooth changes: the width in pixels; 0 for none."""

    data: Path | None = None
    """Folder with the data set's files, for places in it and to choose a partner from."""

    out: Path = Path("explanation.png")
    """The picture; -2, -3, … is put into the name for further images. Figures go to a .json
    beside it."""

    def run(self) -> dict[str, Any]:
        from mintnet.cli.classifier import open_classifier
        from mintnet.figures.explanation import explanation_picture
        from mintnet.models.explain import Explainer

        if self.steps < 1:
            raise ValueError(f"--steps is at least 1; got {self.steps}")
        if not self.images:
            raise ValueError("name at least one IMAGE: a picture file, or a place such as test:7")
        if not 0 <= self.smooth < float("inf"):
            raise ValueError(f"--smooth is a width in pixels, 0 or more; got {self.smooth}")
        if self.rounds < 1:
            raise ValueError(f"--rounds is at least 1; got {self.rounds}")
        places = [self.out, *(_numbered(self.out, k + 2) for k in range(len(self.images) - 1))]
        for place in places:
            check_output(place, [".png"])
        figures_place = self.out.with_suffix(".json")
        check_output(figures_place)
        out = console()
        opened = open_classifier(self.model, self.device)
        explainer = Explainer(opened.invertible, self.chosen_solver(), self.smooth, self.rounds)
        loaded = [load_picture(opened, name, self.data) for name in self.images]
        names = opened.class_names()
        results, drawn = [], []
        for name, image, place in zip(self.images, loaded, places, strict=True):
            with out.status(f"{escape(name)}") if out.is_terminal else _nothing():
                paths, partner, told = self._paths(opened, explainer, image)
            title = f"{name}: what {opened.name} sees"
            picture = explanation_picture(paths, opened.model.levels, names, title, partner)
            written, words = write_picture(picture, place)
            _print(out, name, paths, names)
            out.print(f"{told}\n{words}" if told else words)
            drawn.append(paths)
            results.append(
                {"image": name, "picture": written, "paths": [path.to_dict() for path in paths]}
            )
        figures = {"model": self.model, "precision": "float64", "images": results}
        words = written_words(figures_place)
        write_json(figures_place, {**origin(self), **figures})
        out.print(words)
        steps = [step for paths in drawn for path in paths for step in path.steps]
        failed = sum(not step.certified for step in steps)
        if failed:
            raise FlawedResult(
                f"{failed} of {len(steps)} inversions are not certified, and not shown; "
                + ("use --solver auto" if self.solver != "auto" else "the table says which"),
                figures,
            )
        return figures

    def _paths(
        self, opened: OpenClassifier, explainer: Explainer, image: Tensor
    ) -> tuple[list[PicturePath], Tensor, str]:
        """The answers, the partner, and where that came from."""
        back = explainer.there_and_back(image)
        order = back.start.logits.argsort(descending=True).tolist()
        label = order[1] if self.towards is None else self.towards
        if not 0 <= label < opened.model.classes or label == order[0]:
            raise ValueError(
                f"--towards is a class from 0 to {opened.model.classes - 1} that is not the "
                f"predicted one, {order[0]}; got {label}"
            )
        partner, told = self._partner(opened, image, label)
        shares = [(k + 1) / self.steps for k in range(self.steps)]
        moves = [0.2 * 0.5 ** (self.steps - 1 - k) for k in range(self.steps)]
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
            console().print(f"row {number} of 5: {what}", style="dim")
            paths.append(draw())
        return paths, partner, told

    def _partner(self, opened: OpenClassifier, image: Tensor, label: int) -> tuple[Tensor, str]:
        """Another picture to go to: the nearest test image of the class, where there is one."""
        if self.partner is not None:
            return load_picture(opened, self.partner, self.data), ""
        try:
            data = opened.images(self.data, None, few=True)
        except ValueError as error:
            told = f"No other picture ({error}); the picture upside down stands in for one."
            return image.flip(1), escape(told)
        if data.labels is None:
            return image.flip(1), "The picture upside down stands in for another one."
        places = (data.labels == label).nonzero().flatten()
        if not len(places):
            return image.flip(1), f"{escape(data.name)} has no image of class {label}."
        distance = (data.images[places].double() - image.double()).square().flatten(1).sum(1)
        place = int(places[distance.argmin()])
        return data.images[place], f"The other picture is {escape(data.name)}:test:{place}."


def load_picture(opened: OpenClassifier, name: str, data: Path | None) -> Tensor:
    """A picture for a classifier, (C, H, W) uint8: from a file, or from a place in a data set."""
    import numpy as np
    import torch

    path = Path(name).expanduser()
    if not path.is_file():
        return _from_data(opened, name, data)
    c, h, w = opened.model.shape
    colour = _read_opaque(path)
    if colour.size != (w, h):
        raise ValueError(
            f"{path} has {colour.size[0]} × {colour.size[1]} pixels; {opened.name} takes {w} × {h}"
        )
    pixels = torch.from_numpy(np.array(colour))
    pixels = pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
    if c == 1 and len(pixels) == 3:
        if not bool((pixels == pixels[:1]).all()):
            raise ValueError(f"{path} is in colour; {opened.name} takes grey pictures")
        pixels = pixels[:1]
    pixels = pixels.expand(c, h, w) if len(pixels) == 1 else pixels
    if len(pixels) != c:
        raise ValueError(f"{path} has {len(pixels)} channels; {opened.name} takes {c}")
    top = opened.model.levels - 1
    return (pixels.double() * (top / 255)).round().to(torch.uint8).contiguous()


def _read_opaque(path: Path) -> Image:
    """The picture in a file, grey (L) or in colour (RGB); raises if it is not opaque.

    What lies behind a transparent pixel is not in the file, and any choice would be a guess.
    """
    from PIL import Image

    from mintnet.data.dataset import DataError
    from mintnet.data.folder import eight_bits

    try:
        with Image.open(path) as file:
            file.load()
            see_through = file.has_transparency_data
            image = eight_bits(file, path)
            if see_through and file.mode == image.mode:
                alpha = image.convert("RGBA").getchannel("A").getextrema()
                see_through = alpha != (255, 255)
            colour = image.convert("L" if image.mode in ("L", "1") else "RGB")
    except DataError:
        raise
    except Exception as error:  # decoders of damaged pictures raise nearly anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a picture that can be read ({reason})") from None
    if see_through:
        raise ValueError(
            f"{path} is transparent in places, and what lies behind is not known; save it without "
            f"transparency, on the background that is meant"
        )
    return colour


def _from_data(opened: OpenClassifier, name: str, data: Path | None) -> Tensor:
    parts = name.split(":")
    if len(parts) == 2:
        parts = ["", *parts]
    if len(parts) != 3 or parts[1] not in ("test", "train") or not parts[2].isdecimal():
        raise ValueError(
            f"there is no picture {name}; give a file, or a place in a data set such as "
            f"mnist:test:7 or test:7"
        )
    found = opened.images(data, parts[0] or None, parts[1], few=True)
    place = int(parts[2])
    if place >= len(found):
        raise ValueError(f"{name}: {found.name} has {parts[1]} images 0 to {len(found) - 1}")
    return found.images[place]


def _print(out: Console, name: str, paths: list[PicturePath], names: tuple[str, ...]) -> None:
    table = Table(title=escape(name), title_justify="left", title_style="bold")
    table.add_column("path")
    for column in ("step", "predicted", "pixels", "logits", "clipped", "padding", "certified"):
        table.add_column(column, justify="right")
    for path in paths:
        if not path.steps:
            table.add_row(path.title, *["–"] * 7)
        for number, step in enumerate(path.steps, 1):
            if not step.certified:
                title = path.title if number == 1 else ""
                table.add_row(title, str(number), *["–"] * 5, "[red]no[/]")
                continue
            change = float((step.logits - path.start.logits).abs().max())
            table.add_row(
                path.title if number == 1 else "",
                str(number),
                f"{escape(names[step.predicted])} {100 * step.probability:.1f} %",
                f"{100 * step.moved:.2f} %",
                f"{change:.3g}",
                f"{100 * step.clipped:.1f} %",
                f"{step.padding_energy:.0e}",
                "yes",
            )
    out.print(table)
    for path in paths:
        if not path.steps or not all(step.reached for step in path.steps):
            out.print(f"{path.title}: {path.note}.", style="yellow")
    out.print(
        "pixels: root mean square change, as a share of their range; logits: the largest change; "
        "both of the clipped 8-bit picture that is shown. padding: energy that is not shown.",
        style="dim",
    )


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()
