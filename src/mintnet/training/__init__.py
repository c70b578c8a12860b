"""Training and evaluation: recipes, the step, the loop, run folders."""

from mintnet.training.devices import Devices, is_first_process
from mintnet.training.evaluation import Accuracy, Calibration, Evaluation, evaluate
from mintnet.training.folder import RunError, RunFolder
from mintnet.training.output import Progress
from mintnet.training.recipe import RECIPES, Recipe, data_and_kind
from mintnet.training.start import train

__all__ = [
    "RECIPES",
    "Accuracy",
    "Calibration",
    "Devices",
    "Evaluation",
    "Progress",
    "Recipe",
    "RunError",
    "RunFolder",
    "data_and_kind",
    "evaluate",
    "is_first_process",
    "train",
]
