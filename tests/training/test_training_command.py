"""mintnet train: options are the fields of the recipe, shown with the values of the preset."""

from pathlib import Path

import pytest
import tyro

from mintnet.cli.train import Train
from mintnet.training.recipe import OPTIONS, RECIPES


def parse(*arguments):
    kind = Train.for_arguments(["train", *arguments])
    options = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff)
    return tyro.cli(kind, args=list(arguments), config=options)


def shown(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        parse(*arguments, "--help")
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize("preset", RECIPES)
def test_help_shows_the_values_that_are_used(capsys, monkeypatch, preset):
    monkeypatch.setenv("COLUMNS", "200")
    words, recipe = shown(capsys, preset), RECIPES[preset]
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')} " in words
    for name in ("epochs", "batch_size", "learning_rate", "augmentation", "ema", "validation"):
        assert f"(default: {getattr(recipe, name)})" in words
    if recipe.pairs:
        assert f"(default: {' '.join(map(str, recipe.pairs))})" in words
    assert "--lr FLOAT" in words and "(default: runs/PRESET)" in words
    places = [words.index(f"{group} options") for group in ("data", "network", "devices")]
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
    given = {"learning_rate": 0.5, "pairs": (1, 2, 3), "validation": 0.0, "adam": True}
    assert calls == [
        ("digits", Path("runs/digits"), False, {}),
        ("mnist", Path("runs/mnist"), False, given),
        ("folder", Path("r"), True, {"data": "d", "epochs": 20, "grey": True}),
    ]
    assert "r: 1 step in 2 s of training, best validation bpd 1.500 at 1" in capsys.readouterr().out
