"""The commands on classifiers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mintnet.cli.model import OpenModel
from mintnet.data import load
from mintnet.models import Classifier, ClassifierConfig, Pixels, ResNet, ResNetConfig
from mintnet.models.classifier import PIXELS
from mintnet.training import train
from registry import FIXTURES


@pytest.fixture(scope="session")
def trained_classifier(tmp_path_factory):
    """A run of a minute's share on digits; leave it as it is."""
    run = tmp_path_factory.mktemp("classifiers") / "run"
    train("digits-classifier", run, pairs=(1, 1), max_steps=120, batch_size=32, learning_rate=1e-2)
    return run


@pytest.fixture(scope="session")
def resnet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifiers") / "resnet"
    torch.manual_seed(0)
    ResNet(ResNetConfig((1, 1), (4, 8)), PIXELS["digits"]).save(folder, data={"name": "digits"})
    return folder


def test_evaluate(mintnet, trained_classifier, resnet):
    code, out, err = mintnet("evaluate", trained_classifier, "--json", "e.json")
    assert code == 0, err
    figures = json.loads(Path("e.json").read_text())
    model, data = Classifier.load(trained_classifier), load("digits", "test")
    right = model(data.images).argmax(1) == data.labels
    assert figures["accuracy"] == pytest.approx(float(right.double().mean()))
    assert f"{100 * figures['accuracy']:.2f} % right" in out
    assert np.array(figures["confusion"]).trace() == int(right.sum())
    assert len(figures["most_confident_mistakes"]) == min(24, int((~right).sum()))
    assert Image.open("evaluation.png").size[0] > 500
    code, _, err = mintnet("evaluate", resnet, "--out", "r.png")
    assert code == 0 and Path("r.png").is_file(), err


def test_verify(mintnet, trained_classifier):
    code, _, err = mintnet("verify", trained_classifier, "-n", 6, "--json", "v.json")
    assert code == 0, err
    figures = json.loads(Path("v.json").read_text())
    wide, narrow = figures["float64"], figures["float32"]
    assert wide["verified"] == wide["images"] == narrow["byte_exact"] == 6
    assert wide["worst_pixel_error"] < 1e-6 < narrow["worst_pixel_error"] < 0.5
    assert wide["padding_energy"] < 1e-20
    assert len(wide["layers"]) == 4


def test_info_and_report(mintnet, trained_classifier, resnet):
    for name, words in (
        ("mnist-classifier", "13,600,106"),
        ("cifar10-resnet", "12, 12, 14"),
        (trained_classifier, "an invertible classifier"),
        (resnet, "a ResNet"),
    ):
        code, out, err = mintnet("info", name)
        assert code == 0 and words in out, err
    for model in (trained_classifier, resnet):
        code, _, err = mintnet("report", model, "--out", "page.html")
        assert code == 0, err
        page = Path("page.html").read_text()
        assert "of test images are right" in page
        assert ("images back from their features" in page) == (model is trained_classifier)


def test_explain(mintnet, trained_classifier):
    pixels = (load("digits", "test").images[3, 0].double() * 255 / 16).round().byte().numpy()
    Image.fromarray(pixels).save("three.png")
    options = ["--out", "x.png", "--json", "f.json"]
    code, out, err = mintnet("explain", trained_classifier, "digits:test:3", "three.png", *options)
    assert code == 0 and re.match(r"digits:test:3: \d, \d+\.\d %\n", out), err
    assert Image.open("x.png").size[0] > 300 and Image.open("x-2.png").size[0] > 300
    one, two = (image["paths"] for image in json.loads(Path("f.json").read_text())["images"])
    assert one[0]["start"] == two[0]["start"]  # the same picture from the data set and from a file
    assert len(one) == 3
    back = one[0]["steps"][0]
    assert back["verified"] and back["moved"] == 0
    for path in one:
        assert all(step["verified"] and len(step["logits"]) == 10 for step in path["steps"])


UNSURE = ["--solver", "fixed-point", "--solver-steps", 1]


def test_explain_that_is_not_verified_fails_and_shows_none(fails, trained_classifier):
    command = ["explain", trained_classifier, "test:3", *UNSURE]
    assert fails([*command, "--out", "x.png", "--json", "f.json"], "11 of 11", "not verified")
    assert Path("x.png").is_file()
    for path in json.loads(Path("f.json").read_text())["images"][0]["paths"]:
        for step in path["steps"]:
            assert step["predicted"] is step["probability"] is step["moved"] is None
            assert not step["verified"]


def test_verify_that_is_not_verified_fails(fails, trained_classifier):
    assert fails(
        ["verify", trained_classifier, "-n", 3, *UNSURE, "--json", "v.json"],
        "3 of 3 inversions in float64",
        "3 of 3 inversions in float32",
    )
    figures = json.loads(Path("v.json").read_text())
    assert figures["float32"]["verified"] == figures["float64"]["verified"] == 0


def test_options_without_meaning_for_classifiers(fails, trained_classifier):
    options = {"--out": "a.png", "--divisors": 2, "--iterations": 3, "--curve-images": 5}
    for option in options.items():
        assert fails(["verify", trained_classifier, *option], option[0], "classifier")


def opened(pixels):
    config = ClassifierConfig(width=4, pairs=(1,), filters=(1,))
    return OpenModel("m", Path("m"), Classifier(config, pixels), {})


def test_predict(mintnet, fails, trained_classifier):
    data = load("digits", "test")
    shade = (data.images[3, 0].double() * 255 / 16).round().byte().numpy()
    Path("pictures").mkdir()
    Image.fromarray(shade).save("pictures/a.png")
    Image.fromarray(255 - shade).resize((40, 40)).save("pictures/b.png")
    Path("pictures/notes.txt").write_text("words")
    pictures = ["test:3", "pictures", "nowhere.png"]
    code, out, err = mintnet("predict", trained_classifier, *pictures, "--json", "p.json")
    assert code == 0, err
    scores = Classifier.load(trained_classifier)(data.images[3:4])[0].detach().exp()
    answer = f"{int(scores.argmax())}, {100 * float(scores.max()):.1f} %"
    assert out.startswith(f"test:3: {answer}\npictures/a.png: {answer}\npictures/b.png: ")
    assert "b.png looks inverted" in out and "a.png looks inverted" not in out
    assert out.count("notes.txt: expected a picture") == 1
    assert "there is no picture nowhere.png" in out
    found = json.loads(Path("p.json").read_text())
    assert found["not_read"] == 2 and len(found["pictures"]) == 3
    assert sum(found["pictures"][0]["probabilities"].values()) == pytest.approx(1)
    code, out, err = mintnet("predict", trained_classifier, "pictures/notes.txt")
    assert code == 1 and "error: none of 1 pictures could be read; name" in err


def test_predict_warns_of_pictures_unlike_the_training_images(mintnet):
    Image.effect_noise((28, 28), 80).save("noise.png")
    out = mintnet("predict", "mnist-classifier", "test:7", "noise.png").out
    assert "noise.png is unlike the training images" in out and out.count("unlike") == 1


def test_import(mintnet):
    code, out, err = mintnet("import-original", FIXTURES / "original_classifier.pth", "c")
    assert code == 0 and "an invertible classifier with 4 Mint layers" in out, err


def test_commands_for_density_models(fails, trained_classifier, resnet):
    for command in ("sample", "reconstruct", "interpolate", "tune-step"):
        assert fails([command, trained_classifier], "is a classifier", "density models", "explain")
    assert fails(["bench", "invert", resnet], "is a resnet")


def test_mistakes(fails, model, resnet, trained_classifier):
    assert fails(["verify", resnet], "ResNet", "no inverse")
    assert fails(["explain", resnet, "test:0"], "ResNet", "no inverse")
    assert fails(["evaluate", trained_classifier, "--draws", 2], "--draws")
    assert fails(["evaluate", trained_classifier, "--out", "a.txt"], "a.txt")
    assert fails(["explain", trained_classifier, "nowhere.png"], "nowhere.png", "test:7")
    assert fails(["explain", trained_classifier, "test:360"], "0 to 359")
    assert fails(["explain", trained_classifier, "test:0", "--towards", 10], "--towards", 10)
    Path("words.png").write_text("words")
    assert fails(["explain", trained_classifier, "words.png"], "words.png")
    assert not list(Path().glob("explanation*"))


def test_data_of_another_shape(fails, tmp_path, raises_with):
    Image.new("L", (8, 8)).save(tmp_path / "grey.png")
    with raises_with(ValueError, "(2, 8, 8)", "no picture files"):
        opened(Pixels((2, 8, 8))).picture(str(tmp_path / "grey.png"))
    opened(Pixels((1, 4, 4), 17)).model.save("m", data={"name": "digits"})
    for command in ("evaluate", "verify", "report"):
        assert fails([command, "m"], "(1, 4, 4)", "(1, 8, 8)")
