"""mintnet train: train a preset on its data; the options are the fields of `Recipe`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import tyro

from mintnet.cli.command import Command
from mintnet.cli.output import console

if TYPE_CHECKING:
    from mintnet.training.recipe import Recipe

RUN = Annotated[
    Path | None,
    tyro.conf.arg(name="run", metavar="DIR", help_behavior_hint="(default: runs/PRESET)"),
]
PRESET = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")]


@dataclass(kw_only=True)
class Train(Command):
    """Train a preset on its data; mintnet train PRESET --help shows the values that it uses.

    The run folder gets the weights (last and best), the metrics, samples and all that --resume
    needs. Options left out are the preset's, or those of the run that is resumed.
    """

    preset: PRESET
    """digits, mnist, cifar10, imagenet32, or folder for pictures of your own; classifiers:
    digits-classifier, mnist-classifier, cifar10-classifier, mnist-resnet, cifar10-resnet."""
    run_folder: RUN = None
    """Run folder, new or empty."""
    resume: bool = False
    """Go on with the run in the folder, or begin one; with a larger --epochs it is extended."""

    then = "mintnet report {run}"

    @staticmethod
    def for_arguments(arguments: Sequence[str]) -> type[Train]:
        """The command with all options, showing the values of the preset in the arguments."""
        from mintnet.training.recipe import OPTIONS, RECIPES, Recipe

        preset = next((word for word in arguments if word in RECIPES), "")
        recipe = RECIPES[preset] if preset else Recipe("")
        groups: dict[str, list[Any]] = {}
        for name, entry in OPTIONS.items():
            groups.setdefault(entry.metadata["group"], []).append(_option(name, recipe))
        flat: Any = tyro.conf.OmitArgPrefixes
        inner = [
            (
                f"{group}_",
                Annotated[flat[make_dataclass(group, options)], tyro.conf.arg(name=group)],
            )
            for group, options in groups.items()
            if group != "run"
        ]
        made = make_dataclass("Train", [*groups["run"], *inner], bases=(Train,), kw_only=True)
        made.__doc__ = Train.__doc__
        return made

    def run(self) -> dict[str, Any]:
        """Train, and return the run's figures."""
        from mintnet.training import Progress, is_first_process, train
        from mintnet.training.recipe import OPTIONS

        groups = [value for value in vars(self).values() if is_dataclass(value)]
        options = {n: v for group in (self, *groups) for n, v in vars(group).items()}
        given = {n: v for n, v in options.items() if n in OPTIONS and v is not False}
        out = console()
        figures = train(
            self.preset,
            self.run_folder or Path("runs", self.preset),
            resume=self.resume,
            progress=Progress(out),
            **given,
        )
        if is_first_process():
            out.print(_summary(figures), markup=False)
        return figures


def _option(name: str, recipe: Recipe) -> tuple[str, Any, Any]:
    """A field of the command for a field of the recipe: None, or False for a flag, is not given."""
    from mintnet.training.recipe import OPTIONS, TYPES

    about, value = OPTIONS[name].metadata, getattr(recipe, name)
    aliases = [about["alias"]] if about["alias"] else None
    if TYPES[name] is bool:
        return name, Annotated[bool, tyro.conf.arg(help=about["help"], aliases=aliases)], False
    words = about["shown"] if value is None else value
    if isinstance(value, tuple):
        words = " ".join(map(str, value)) or "none"
    arg = tyro.conf.arg(
        help=about["help"],
        help_behavior_hint=f"(default: {words})",
        aliases=aliases,
        metavar=_metavar(TYPES[name]),
    )
    return name, Annotated[TYPES[name] | None, arg], None


def _metavar(kind: Any) -> str:
    """How a value is written: INT, FLOAT, TEXT, a list of them, or the choices."""
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    inner = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is tuple:
        return f"{_metavar(inner[0])} ..."
    if inner:
        return _metavar(inner[0])
    return {int: "INT", float: "FLOAT"}.get(kind, "TEXT")


def _summary(figures: dict[str, Any]) -> str:
    best, steps, seconds = figures["best"], figures["steps"], figures["seconds"]
    name, at = figures["figure"], figures["best_step"]
    held = "" if best is None else f", best validation {name} {best:.3f} at {at}"
    taken = f"{steps} step{'s' * (steps != 1)} in {seconds:.0f} s of training"
    return f"{figures['run']}: {taken}{held}"
