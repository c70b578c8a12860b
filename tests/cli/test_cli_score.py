"""`mintnet score`: a folder of pictures, with a broken one in it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mintnet.models import Flow


def write_pictures(folder: Path, images: torch.Tensor) -> None:
    folder.mkdir()
    for k, image in enumerate(images):
        pixels = np.round(image[0].numpy() * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{k:03d}.png")


@pytest.fixture
def pictures(tmp_path: Path, tiny_flow: Flow) -> Path:
    """150 usual pictures, a white one, and files that are none."""
    usual = tiny_flow.sample(150, seed=1)
    write_pictures(tmp_path / "usual", usual)
    write_pictures(tmp_path / "new", torch.cat([usual[:40], torch.full((1, 1, 8, 8), 16).byte()]))
    folder = tmp_path / "new"
    (folder / "[broken].png").write_bytes((folder / "000.png").read_bytes()[:50])
    return folder


@pytest.fixture
def own(tmp_path: Path, tiny_flow: Flow) -> Path:
    tiny_flow.save(tmp_path / "model", preset="digits", data={"name": "digits"})
    return tmp_path / "model"


def test_score(mintnet, own, pictures):
    options = ("--reference", "usual", "--out", "a", "--json", "f.json")
    found = mintnet("score", own, pictures, *options)
    assert found.code == 0, found.err
    assert "left out" in found.out and "[broken].png" in found.out
    rows = list(csv.DictReader(Path("a/scores.csv").read_text().splitlines()))
    facts = json.loads(Path("a/scores.json").read_text())
    assert len(rows) == 41 and list(facts["left_out"]) == [str(pictures / "[broken].png")]
    assert facts["pictures"] == json.loads(Path("f.json").read_text())["pictures"]
    oddest = max(facts["pictures"], key=lambda row: row["oddness"])
    assert oddest["picture"].endswith("040.png") and oddest["odd"] and oddest["p_value"] < 0.01
    page = Path("a/scores.html").read_text()
    assert page.count("<figure") == 41 and "[broken]" not in page
    assert page.index("040.png") < page.index("000.png")
    again = mintnet("score", own, pictures, "--out", "b")  # its scores are with the model now
    assert again.code == 0, again.err
    assert json.loads(Path("b/scores.json").read_text())["pictures"] == facts["pictures"]


def test_mistakes(fails, own, pictures, model):
    Path("empty").mkdir()
    for words, *given in (
        ("no reference scores", model, pictures),
        ("no picture and no folder nowhere", own, "nowhere", "--reference", "usual"),
        ("holds no picture", own, pictures, "--reference", "empty"),
        ("at least 20 reference", own, pictures, "--reference", "new/000.png"),
        ("at least 999 reference", own, pictures, "--reference", "usual", "--rate", 0.001),
        ("--rate lies between", own, pictures, "--rate", 1.5),
        ("no pictures to score", own, "empty", "--reference", "usual"),
        ("not empty", own, pictures, "--out", "usual"),
        ("density models", "mnist-classifier", pictures),
    ):
        fails(["score", *given], words)
