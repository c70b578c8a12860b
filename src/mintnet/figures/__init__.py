"""Drawing: grids of images, plots, and the report that holds them all."""

from mintnet.figures.grid import image_grid, paired_grid, save_picture
from mintnet.figures.plots import draw_error_curves, draw_metrics, draw_trials
from mintnet.figures.report import write_report
from mintnet.figures.style import DARK, LIGHT, Theme, render

__all__ = [
    "DARK",
    "LIGHT",
    "Theme",
    "draw_error_curves",
    "draw_metrics",
    "draw_trials",
    "image_grid",
    "paired_grid",
    "render",
    "save_picture",
    "write_report",
]
