"""What commands have in common."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, dataclass_transform

import tyro

from mintnet.cli.model import OpenModel, open_model
from mintnet.cli.output import console
from mintnet.data import ImageData
from mintnet.data.dataset import SLICE
from mintnet.solvers import Bisection, FixedPoint, Solver, Wavefront

Model = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
Count = Annotated[int, tyro.conf.arg(aliases=["-n"])]

# Options that may be left out; their texts say what happens then.
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Whole = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
Number = Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")]


class FlawedResult(ValueError):
    """The work is done and ``--json`` gets its figures, but something in it failed."""

    def __init__(self, reason: str, figures: dict[str, Any]) -> None:
        super().__init__(reason)
        self.figures = figures


@dataclass_transform(kw_only_default=True)
@dataclass(kw_only=True)
class Command(ABC):
    """A command: a dataclass, whose fields are the options and their comments the help texts."""

    json: File = None
    """Write the figures into this file, as JSON."""

    typed = "mintnet"  # how it was called, for figures that are to be measured again
    then = ""  # what to do next, with names of options and figures in braces

    def __init_subclass__(cls, then: str = "") -> None:
        dataclass(kw_only=True)(cls)
        cls.then = then or cls.then

    @abstractmethod
    def run(self) -> dict[str, Any]:
        """Do the work, print for people, and return the figures as plain data."""


class ModelCommand(Command):
    """A command about a trained model."""

    model: Model  # A run folder, a saved model folder, or the name of a shipped model.
    device: str = "auto"  # Where to compute: cpu, cuda, or auto for a GPU if there is one.

    def open(self) -> OpenModel:
        return open_model(self.model, self.device)


class SolverCommand(ModelCommand):
    """A command that inverts a trained model."""

    solver: Literal["auto", "wavefront", "fixed-point", "bisection"] = "auto"
    """How layers are inverted."""
    step: Number = None  # α of Algorithm 1, with --solver fixed-point; 1 if not given.
    solver_steps: Whole = None  # Most steps a layer, with --solver fixed-point; 120 if not given.

    def chosen_solver(self) -> Solver | None:
        """The solver that the options name; None for the default."""
        options: dict[str, Any] = {"step": self.step, "max_steps": self.solver_steps}
        given = {name: value for name, value in options.items() if value is not None}
        if self.solver == "fixed-point":
            return FixedPoint(**given)
        if given:
            name = "--step" if "step" in given else "--solver-steps"
            raise ValueError(f"{name} belongs to --solver fixed-point: leave {name} out")
        return {"auto": None, "wavefront": Wavefront(), "bisection": Bisection()}[self.solver]


@dataclass(kw_only=True)
class DataOptions:
    """Which images a command takes."""

    data: Folder = None  # Folder with the data set's files; that of the training if not given.
    data_set: Name = None
    """The data set, where it is not the model's own: digits, mnist, cifar10, imagenet32, folder."""
    split: Literal["test", "train"] = "test"  # Which part of the data set.

    def images(self, model: OpenModel, count: int | None = None) -> ImageData:
        """The first of the images that the options name; says where they are the package's own."""
        data = model.images(self.data, self.data_set, self.split)
        if data.name == SLICE:
            words = f"The {len(data)} images of MNIST's test set that ship with the package"
            console().print(f"{words}; --data DIR takes all 10,000.", style="dim")
        return data if count is None else data.first(count)


class DataCommand(DataOptions, SolverCommand):
    """A command that inverts a trained model at images of its kind."""
