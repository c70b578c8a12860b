"""Drawing: grids of images, plots, and the report that holds them all."""

from mintnet.figures.classification import evaluation_picture, explanation_picture
from mintnet.figures.grid import image_grid, paired_grid, save_picture
from mintnet.figures.report import build_page, draw_error_curves, draw_metrics
from mintnet.figures.style import DARK, LIGHT, Theme, render

__all__ = [
    "DARK",
    "LIGHT",
    "Theme",
    "build_page",
    "draw_error_curves",
    "draw_metrics",
    "evaluation_picture",
    "explanation_picture",
    "image_grid",
    "paired_grid",
    "render",
    "save_picture",
]
