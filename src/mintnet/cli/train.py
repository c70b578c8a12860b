"""mintnet train: train a preset on its data; the options are the fields of `Recipe`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from mintnet import training
from mintnet.cli.command import Command
from mintnet.cli.output import console
from mintnet.training.recipe import OPTIONS, RECIPES, TYPES, Recipe

RUN = Annotated[
    Path | None,
    tyro.conf.arg(name="run", metavar="DIR", help_behavior_hint="(default: runs/PRESET)"),
]
PRESET = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")]


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
        preset = next((word for word in arguments if word in RECIPES), "")
        recipe = RECIPES[preset] if preset else Recipe("")
        groups: dict[str, list[Any]] = {}
        for name, entry in OPTIONS.items():
            groups.setdefault(entry.metadata["group"], []).append(_option(name, recipe))
        fields, flat = groups.pop("run"), tyro.conf.OmitArgPrefixes
        for group, options in groups.items():
            kind: Any = make_dataclass(group, options)
            fields.append((f"{group}_", Annotated[flat[kind], tyro.conf.arg(name=group)]))
        made = make_dataclass("Train", fields, bases=(Train,), kw_only=True)
        made.__doc__ = Train.__doc__
        return made

    def run(self) -> dict[str, Any]:
        """Train, and return the run's figures."""
        groups = [value for value in vars(self).values() if is_dataclass(value)]
        options = {n: v for group in (self, *groups) for n, v in vars(group).items()}
        given = {n: v for n, v in options.items() if n in OPTIONS and v is not False}
        out, folder = console(), self.run_folder or Path("runs", self.preset)
        bar = training.Progress(out)
        found = training.train(self.preset, folder, resume=self.resume, progress=bar, **given)
        if training.is_first_process():
            best, steps = found["best"], found["steps"]
            taken = f"{steps} step{'s' * (steps != 1)} in {found['seconds']:.0f} s of training"
            if best is not None:
                taken += f", best validation {found['figure']} {best:.3f} at {found['best_step']}"
            out.print(f"{found['run']}: {taken}", markup=False)
        return found


def _option(name: str, recipe: Recipe) -> tuple[str, Any, Any]:
    """A field of the command for a field of the recipe: None, or False for a flag, is not given."""
    about, value, kind = OPTIONS[name].metadata, getattr(recipe, name), TYPES[name]
    options: dict[str, Any] = {"help": about["help"]}
    options["aliases"] = [about["alias"]] if about["alias"] else None
    if kind is bool:
        return name, Annotated[bool, tyro.conf.arg(**options)], False
    words = about["shown"] if value is None else value
    if isinstance(value, tuple):
        words = " ".join(map(str, value)) or "none"
    hint = f"(default: {words})"
    arg = tyro.conf.arg(help_behavior_hint=hint, metavar=_metavar(kind), **options)
    return name, Annotated[kind | None, arg], None


def _metavar(kind: Any) -> str:
    """How a value is written: INT, FLOAT, TEXT, a list of them, or the choices."""
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    inner = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is tuple:
        return f"{_metavar(inner[0])} ..."
    return _metavar(inner[0]) if inner else {int: "INT", float: "FLOAT"}.get(kind, "TEXT")
