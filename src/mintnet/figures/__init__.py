"""Drawing: grids of images, plots, and the report that holds them all."""

from mintnet.figures.classification import evaluation_picture as evaluation_picture
from mintnet.figures.classification import explanation_picture as explanation_picture
from mintnet.figures.report import build_page as build_page
from mintnet.figures.report import draw_error_curves as draw_error_curves
from mintnet.figures.report import paired_grid as paired_grid
from mintnet.figures.style import render as render
from mintnet.models.pictures import image_grid as image_grid
from mintnet.models.pictures import save_picture as save_picture
