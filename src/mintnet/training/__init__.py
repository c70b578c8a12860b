"""Training and evaluation: recipes, the step, the loop, run folders."""

from mintnet.training.devices import Devices, is_first_process
from mintnet.training.evaluation import Accuracy, Calibration, Evaluation, evaluate
from mintnet.training.folder import RunError, RunFolder
from mintnet.training.output import Progress
from mintnet.training.recipe import RECIPES, Recipe
from mintnet.training.start import train

__all__ = ["RECIPES", "Accuracy", "Calibration", "Devices", "Evaluation", "Progress", "Recipe"]
__all__ += ["RunError", "RunFolder", "evaluate", "is_first_process", "train"]
