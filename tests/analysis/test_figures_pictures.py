"""Grids and plots."""

import numpy as np
import pytest
import torch
from PIL import Image

from mintnet.figures.report import draw_metrics
from mintnet.figures.style import DARK, LIGHT, render
from mintnet.models.pictures import LINE, image_grid, save_picture


def test_grid_pixels():
    images = torch.tensor([0, 8, 16], dtype=torch.uint8).reshape(3, 1, 1, 1).expand(3, 1, 2, 2)
    picture = np.asarray(image_grid(images, levels=17, columns=2, width=12))
    assert picture.shape == (14, 14, 4)  # 2 × 2 images of 6 × 6, lines of 2 between
    assert (picture[:5, :5] == (0, 0, 0, 255)).all()
    assert (picture[:5, 8:] == (128, 128, 128, 255)).all()
    assert (picture[8:, :5] == (255, 255, 255, 255)).all()
    assert (picture[6:8, :6] == LINE).all() and (picture[:6, 6:8] == LINE).all()
    assert (picture[8:, 8:, 3] == 0).all()  # nothing there


def test_grid_in_colour_and_with_gaps():
    images = torch.arange(12, dtype=torch.uint8).reshape(4, 3, 1, 1)
    picture = np.asarray(image_grid(images, columns=1, width=1, paired=True))
    assert picture.shape == (4 + 3 * 2 + 4, 1, 4)
    assert (picture[4:10, 0, 3] == 0).all()
    assert picture[0, 0].tolist() == [0, 1, 2, 255] and picture[-1, 0].tolist() == [9, 10, 11, 255]


@pytest.mark.parametrize("shape", [(2, 2, 4, 4), (4, 4), (0, 1, 4, 4)])
def test_grid_refuses(shape):
    with pytest.raises(ValueError, match="expected"):
        image_grid(torch.zeros(shape, dtype=torch.uint8))


def test_save_picture_without_transparency(tmp_path):
    picture = image_grid(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), width=8)
    saved = Image.open(save_picture(picture, tmp_path / "new" / "grid.bmp"))
    assert saved.mode == "RGB" and saved.getpixel((8, 8)) == (255, 255, 255)


def test_plots_are_reproducible_and_follow_the_theme():
    rows = [{"kind": "train", "step": k, "bpd": 3 / k} for k in range(1, 5)]

    def draw(axes, theme):
        draw_metrics(axes, theme, rows)

    assert render(draw) == render(draw)
    assert DARK.colours[0].encode() in render(draw, DARK)
    assert LIGHT.colours[0].encode() in render(draw, LIGHT)
    assert render(draw, kind="png")[:4] == b"\x89PNG"


def test_curves_without_points():
    assert render(lambda axes, theme: draw_metrics(axes, theme, []))
