"""Pictures: grids of images, curves, the invertibility plot, and the report that holds them all."""

from mintnet.figures.curves import draw_curves, read_metrics
from mintnet.figures.grid import image_grid, save_picture
from mintnet.figures.interpolation import ANGLES, codes_between, interpolate
from mintnet.figures.invertibility import ErrorCurve, draw_error_curves, error_curve
from mintnet.figures.layers import LayerRow, join_solutions, layer_rows, solve_in_batches
from mintnet.figures.reconstruction import Reconstruction, pixel_error, reconstruct
from mintnet.figures.report import Contents, write_report
from mintnet.figures.style import DARK, LIGHT, Theme, render
from mintnet.figures.tuning import Trial, draw_trials, tune_step

__all__ = [
    "ANGLES",
    "DARK",
    "LIGHT",
    "Contents",
    "ErrorCurve",
    "LayerRow",
    "Reconstruction",
    "Theme",
    "Trial",
    "codes_between",
    "draw_curves",
    "draw_error_curves",
    "draw_trials",
    "error_curve",
    "image_grid",
    "interpolate",
    "join_solutions",
    "layer_rows",
    "pixel_error",
    "read_metrics",
    "reconstruct",
    "render",
    "save_picture",
    "solve_in_batches",
    "tune_step",
    "write_report",
]
