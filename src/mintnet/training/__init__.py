"""Training and evaluation: recipes, the step, the loop, run folders."""

from mintnet.training.accuracy import Accuracy, Calibration
from mintnet.training.baselines import gaussian_bits_per_dim, histogram_bits_per_dim
from mintnet.training.devices import Devices, is_first_process
from mintnet.training.evaluation import Evaluation, evaluate, evaluate_classifier
from mintnet.training.folder import RunError, RunFolder
from mintnet.training.loop import train
from mintnet.training.progress import ConsoleProgress, Progress
from mintnet.training.recipe import RECIPES, Recipe, data_and_kind, recipe_for

__all__ = [
    "RECIPES",
    "Accuracy",
    "Calibration",
    "ConsoleProgress",
    "Devices",
    "Evaluation",
    "Progress",
    "Recipe",
    "RunError",
    "RunFolder",
    "data_and_kind",
    "evaluate",
    "evaluate_classifier",
    "gaussian_bits_per_dim",
    "histogram_bits_per_dim",
    "is_first_process",
    "recipe_for",
    "train",
]
