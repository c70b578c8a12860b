"""mintnet train: options are the fields of the recipe, shown with the values of the preset."""

import re
from pathlib import Path

import pytest

from mintnet.cli import app
from mintnet.training.recipe import OPTIONS, RECIPES


def parse(*arguments):
    return app.parse(["train", *arguments])


def shown(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        parse(*arguments, "--help")
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize("preset", RECIPES)
def test_help_shows_the_values_that_are_used(capsys, monkeypatch, preset):
    monkeypatch.setenv("COLUMNS", "200")
    words, recipe = shown(capsys, preset), RECIPES[preset]
    hidden = {name for name in OPTIONS if not re.search(rf"--{name.replace('_', '-')}[ ,]", words)}
    if preset == "folder":  # it can be of Mint layers too
        assert hidden == {"label_smoothing"}
    else:  # what the preset refuses, and nothing else
        assert hidden == {name for name in OPTIONS if recipe.refusal(name)} >= {"size", "grey"}
    assert ("pairs" in hidden) == ("deep" in preset or "resnet" in preset)
    assert f"all other weights. (default: {'on' if recipe.muon else 'off'})" in words
    for name in ("epochs", "batch_size", "learning_rate", "augmentation", "ema", "validation"):
        assert f"(default: {getattr(recipe, name)})" in words
    if recipe.pairs:
        assert f"(default: {' '.join(map(str, recipe.pairs))})" in words
    assert "--filters INT ... " in words or "resnet" in preset
    assert "--lr FLOAT" in words and "(default: runs/PRESET)" in words
    places = [words.index(f"{group} options") for group in ("data", "optimization", "devices")]
    assert places == sorted(places)  # the rare ones last


def test_what_is_given_is_passed_on_and_nothing_else(monkeypatch, tmp_path, capsys):
    calls = []

    def train(preset, run, *, resume, progress, **options):
        calls.append((preset, run, resume, {k: v for k, v in options.items() if v is not None}))
        figures = {"best": 1.5, "steps": 1, "seconds": 2.0, "figure": "bpd", "best_step": 1}
        return {**figures, "run": str(run)}

    monkeypatch.setattr("mintnet.training.train", train)
    parse("digits").run()
    parse("mnist", "--lr", "0.5", "--pairs", "1", "2", "3", "--validation", "0", "--adam").run()
    parse("folder", "--data", "d", "--run", "r", "--resume", "--epochs", "20", "--grey").run()
    parse("mnist-deep", "--no-muon", "--no-adam").run()
    given = {"learning_rate": 0.5, "pairs": (1, 2, 3), "validation": 0.0, "adam": True}
    assert calls == [
        ("digits", Path("runs/digits"), False, {}),
        ("mnist", Path("runs/mnist"), False, given),
        ("folder", Path("r"), True, {"data": "d", "epochs": 20, "grey": True}),
        ("mnist-deep", Path("runs/mnist-deep"), False, {"muon": False, "adam": False}),
    ]
    assert "r: 1 step in 2 s of training, best validation bpd 1.500 at 1" in capsys.readouterr().out
