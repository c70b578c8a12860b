"""A run on ImageNet 32×32 knows which version its files are."""

import json
from pathlib import Path

import numpy as np
import pytest

from mintnet.files import sha256


@pytest.fixture
def files(mintnet):
    """A few images under the names of the older version, in a folder given relative."""
    Path("old").mkdir()
    noise = np.random.default_rng(0)
    for name, count in (("train", 12), ("valid", 4)):
        np.save(f"old/{name}_32x32.npy", noise.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8))


SMALL = ("--pairs", 1, 1, 1, "--filters", 1, 1, 1, "--batch-size", 4, "--sample-every", 0)


@pytest.mark.parametrize("npz", [False, True])
def test_train_and_evaluate_the_anti_aliased_version(mintnet, write_box, npz):
    write_box(Path("box"), npz=npz)
    made = mintnet("train", "imagenet32", "--data", "box", "--run", "r", "--max-steps", 1, *SMALL)
    assert made.code == 0 and "20 training, 1 held out of training" in made.out
    found = mintnet("evaluate", "r", "--json", "figures.json")
    assert found.code == 0 and "2 test images of imagenet32-box" in found.out
    figures = json.loads(Path("figures.json").read_text())
    assert figures["command"] == "mintnet evaluate r --json figures.json"
    assert figures["weights_sha256"] == sha256(Path("r/last/model.safetensors"))
    assert figures["commit"] and figures["precision"] == "float32"
    assert "on 1 test images" in mintnet("evaluate", "r", "-n", 1).out
    assert figures["machine"]["tf32"] is False


def test_train_and_evaluate(mintnet, fails, files, monkeypatch):
    made = mintnet("train", "imagenet32", "--data", "old", "--run", "r", "--max-steps", 1, *SMALL)
    assert made.code == 0, made.err
    assert "12 training, 1 held out of training" in made.out
    assert "1 step of 4 images on cpu" in made.out
    facts = json.loads(Path("r/run.json").read_text())["data"]
    assert (facts["name"], facts["version"]) == ("imagenet32", "imagenet32-old")
    assert facts["folder"] == str(Path("old").absolute())
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")  # the files are found from anywhere
    code, out, err = mintnet("evaluate", "../r")
    assert code == 0 and "4 test images of imagenet32-old" in out, err
    assert mintnet("reconstruct", "../r", "-n", 2).code == 0
    monkeypatch.chdir("..")

    config = Path("r/last/config.json")
    content = json.loads(config.read_text())
    content["data"] = {"name": "imagenet32", "version": "imagenet32-box", "folder": "old"}
    config.write_text(json.dumps(content))
    for command in ("evaluate", "reconstruct"):
        fails([command, "r"], "imagenet32-box", "imagenet32-old", "never mix")
    fails(["evaluate", "r", "--data", "gone"], "gone", "--data")
