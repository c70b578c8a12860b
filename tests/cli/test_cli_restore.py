"""`mintnet restore`: a picture behind a mask, noise or few pixels."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def mask(tmp_path: Path) -> Path:
    pixels = np.zeros((8, 8), np.uint8)
    pixels[4:] = 255
    Image.fromarray(pixels).save(tmp_path / "mask.png")
    Image.fromarray(pixels[:4]).save(tmp_path / "half.png")
    Image.fromarray(pixels[:4, :4]).save(tmp_path / "small.png")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "nothing.png")
    (tmp_path / "words.png").write_text("words")
    return tmp_path / "mask.png"


@pytest.mark.parametrize("way", [("--mask", "mask.png"), ("--noise", "25/255"), ("--zoom", 2)])
def test_restore(mintnet, model, mask, way):
    found = mintnet("restore", model, "test:0", *way, "-n", 3, "--steps", 30, "--json", "f.json")
    assert found.code == 0, found.err
    assert "acceptance" in found.out
    assert Image.open("restored.png").size[0] > 6 * 8
    figures = json.loads(Path("f.json").read_text())
    assert figures["samples"] == 3 and 0 <= figures["acceptance"] <= 1


def test_a_small_picture_from_a_file(mintnet, model, mask):
    found = mintnet("restore", model, "small.png", "--zoom", 2, "-n", 2, "--steps", 20)
    assert found.code == 0, found.err


def test_mistakes(fails, model, mask):
    for words, *given in (
        ("one of --mask, --noise and --zoom",),
        ("one of --mask, --noise and --zoom", "--zoom", 2, "--noise", 0.1),
        ("8 × 4 pixels; the model has 8 × 8", "--mask", "half.png"),
        ("hides nothing", "--mask", "nothing.png"),
        ("not a picture", "--mask", "words.png"),
        ("nowhere.png: there is no such file; expected a picture", "--mask", "nowhere.png"),
        ("--label 11", "--noise", 0.1, "--label", 11),
        ("--noise is a number such as", "--noise", "much"),
        ("zoom is 2", "--zoom", 4),
        ("steps here at least", "--noise", 0.1, "--steps", 2),
    ):
        fails(["restore", model, "test:0", *given], words)
