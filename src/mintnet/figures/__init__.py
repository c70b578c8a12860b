"""Drawing: grids of images, plots, and the report that holds them all."""

from mintnet.models.pictures import image_grid as image_grid
from mintnet.models.pictures import save_picture as save_picture
