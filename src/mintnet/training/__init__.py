"""Training and evaluation: recipes, the loop, run folders."""

from mintnet.training.baselines import gaussian_bits_per_dim, histogram_bits_per_dim
from mintnet.training.cadence import Cadence
from mintnet.training.devices import Devices
from mintnet.training.evaluation import Evaluation, evaluate
from mintnet.training.files import RunError
from mintnet.training.folder import RunFolder
from mintnet.training.loop import train
from mintnet.training.plan import Plan
from mintnet.training.progress import ConsoleProgress, Progress
from mintnet.training.recipe import RECIPES, Recipe, recipe_for

__all__ = [
    "RECIPES",
    "Cadence",
    "ConsoleProgress",
    "Devices",
    "Evaluation",
    "Plan",
    "Progress",
    "Recipe",
    "RunError",
    "RunFolder",
    "evaluate",
    "gaussian_bits_per_dim",
    "histogram_bits_per_dim",
    "recipe_for",
    "train",
]
