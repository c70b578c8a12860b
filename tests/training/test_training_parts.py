"""Order, schedules, recipes, samples, files: the small parts of a run."""

import json
import math
import time
from dataclasses import asdict

import pytest
import torch
from PIL import Image
from rich.console import Console
from training_processes import state

from mintnet.data import load
from mintnet.models import Flow, ModelFileError
from mintnet.models.locate import load_flow, locate
from mintnet.training import (
    RECIPES,
    Progress,
    Recipe,
    RunError,
    RunFolder,
    recipe_for,
    train,
)
from mintnet.training.augment import cut_out, flipped
from mintnet.training.build import build_task
from mintnet.training.data import held_out, permutation
from mintnet.training.optimizers import learning_rate
from mintnet.training.recipe import OPTIONS
from mintnet.training.samples import Sampler


def test_the_order_is_a_function_of_seed_and_epoch():
    torch.manual_seed(0)
    one = permutation(3, 7, 100)
    torch.manual_seed(1)
    assert torch.equal(one, permutation(3, 7, 100))
    assert not torch.equal(one, permutation(3, 8, 100))
    assert not torch.equal(one, permutation(4, 7, 100))
    assert torch.equal(one.sort().values, torch.arange(100))


def test_no_draw_of_the_global_generator(tmp_path, tiny):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    build_task(Recipe.of("digits"), load("digits", "train"))
    permutation(0, 0, 10)
    assert torch.equal(before, torch.get_rng_state())


def test_cutouts_are_squares_somewhere():
    images = torch.ones(50, 3, 32, 32, dtype=torch.uint8)
    cut = cut_out(images, 0, 0, torch.arange(50))
    dark = (cut == 0).sum((1, 2, 3)) / 3
    assert int(dark.max()) == 64 and int(dark.min()) >= 16
    assert torch.equal(cut[5:9], cut_out(images[5:9], 0, 0, torch.arange(5, 9)))


def test_flips_follow_the_image_not_the_batch():
    images = torch.randint(0, 255, (40, 3, 4, 4)).byte()
    index = torch.arange(40)
    whole = flipped(images, 0, 2, index)
    assert torch.equal(flipped(images[10:20], 0, 2, index[10:20]), whole[10:20])
    turned = [not torch.equal(a, b) for a, b in zip(whole, images, strict=True)]
    assert 8 < sum(turned) < 32
    assert not torch.equal(whole, flipped(images, 0, 3, index))


def test_held_out_images_are_not_trained_on():
    train, held = held_out(1437, 0.05)
    assert len(held) == 72
    assert torch.equal(torch.cat([train, held]).sort().values, torch.arange(1437))
    assert torch.equal(held, held_out(1437, 0.05)[1])
    assert len(held_out(1437, 0.0)[1]) == 0


def test_the_papers_schedules():
    mnist = RECIPES["mnist"]
    total = mnist.epochs * 10
    rates = [learning_rate(mnist, epoch * 10, total) for epoch in (0, 249, 250, 349, 350, 399)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    cifar = RECIPES["cifar10"]
    assert learning_rate(cifar, 0, 100) == 1e-3
    assert learning_rate(cifar, 50, 100) == pytest.approx(5e-4)
    assert learning_rate(cifar, 100, 100) == pytest.approx(0, abs=1e-12)
    recipe = Recipe("digits", learning_rate=2.0, schedule="step", warmup=4)
    assert [learning_rate(recipe, step, 20) for step in (0, 3, 10)] == [0.5, 2.0, 2.0]


def test_the_papers_recipes():
    for name in ("mnist", "cifar10", "imagenet32"):
        recipe = recipe_for(name)
        assert (recipe.batch_size, recipe.learning_rate, recipe.eps) == (32, 1e-3, 1e-4)
    assert RECIPES["cifar10"].augmentation == "flip"
    assert RECIPES["imagenet32"].max_steps == 350_000
    assert 10 * math.floor(1_281_167 * 0.95 / 32) > 350_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"schedule": "up"},
        {"precision": "float16"},
        {"augmentation": "rotate"},
        {"ema": 1.0},
        {"clip": -1.0},
        {"validation": 1.0},
        {"milestones": (250,)},
    ],
)
def test_recipes_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Recipe("digits", **wrong)


def test_a_recipe_survives_json():
    shape = {"pairs": (1, 2), "filters": (3, 4), "milestones": (0.5,), "schedule": "step"}
    recipe = Recipe.of("digits", **shape)
    saved = Recipe(**json.loads(json.dumps(asdict(recipe))))
    assert saved == recipe
    assert saved.resumed("run", "digits", pairs=[1, 2], epochs=None, devices="2").devices == "2"


def test_milestones_of_another_schedule():
    with pytest.raises(ValueError, match=r"belongs to the step schedule, .*--schedule"):
        Recipe.of("digits", milestones=(0.5,))


def test_every_option_says_what_it_is():
    assert all(entry.metadata["help"].endswith(".") for entry in OPTIONS.values())
    assert all(e.metadata["shown"] for e in OPTIONS.values() if e.default is None)


def test_ema_weights_are_what_is_saved(tmp_path, tiny):
    tiny(tmp_path / "run", ema=0.9, max_steps=5)
    found, flow = state(tmp_path / "run"), load_flow(tmp_path / "run")
    for name, parameter in flow.named_parameters():
        mask = parameter != 0  # masked weights are not saved
        assert torch.equal(parameter[mask], found["averaged"][name][mask])
        assert not torch.equal(found["model"][name], found["averaged"][name])


@pytest.mark.parametrize("precision", ["bf16", "tf32", "float64"])
def test_precisions(tmp_path, tiny, precision):
    figures = tiny(tmp_path / "run", precision=precision, max_steps=3)
    plain = tiny(tmp_path / "plain", max_steps=3)
    assert figures["validation"]["bpd"] == pytest.approx(plain["validation"]["bpd"], abs=0.02)


def test_what_a_run_leaves(tmp_path, tiny):
    given = {"epochs": 1, "max_steps": 0, "batch_size": 100, "sample_every": 10}
    figures = tiny(tmp_path / "run", checkpoint_every=0, **given)
    folder = RunFolder(tmp_path / "run")
    assert folder.read()["recipe"]["batch_size"] == 100
    assert {row["kind"] for row in folder.metrics()} == {"train", "validation"}
    names = ["step_0000010.png", "step_0000013.png"]
    assert sorted(path.name for path in folder.samples.iterdir()) == names
    assert not (folder.path / "tensorboard").exists()
    assert figures["best"] == figures["validation"]["bpd"]
    for place in (folder.path, folder.last, folder.best):
        assert Flow.load(place).shape == load_flow(place).shape == (1, 8, 8)


def test_curves_for_tensorboard(tmp_path, tiny, monkeypatch):
    pytest.importorskip("tensorboard")
    tiny(tmp_path / "run", tensorboard=True)
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(RunError, match=r"pip install mintnet\[tensorboard\]"):
        tiny(tmp_path / "other", tensorboard=True)


class Slow:
    """A flow whose samples take a while, and what it drew."""

    def __init__(self, seconds):
        self.seconds, self.drawn = seconds, []

    def sample_latents(self, count, seed):
        return torch.zeros(count, 1, 2, 2)

    def decode(self, z):
        self.now += self.seconds * len(z)
        self.drawn.append(len(z))
        return z.byte()


@pytest.mark.parametrize("seconds", [0.001, 0.1, 3.0, 100.0])
def test_samples_take_a_tenth_of_a_run(monkeypatch, seconds):
    flow, elapsed = Slow(seconds), 0.0
    flow.now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: flow.now)
    sampler = Sampler()
    for number in range(1, 11):
        elapsed += 100.0
        images = sampler.draw(flow, elapsed, last=number == 10)
    assert sampler.spent == pytest.approx(flow.now)
    assert sampler.spent <= max(0.1 * elapsed, seconds)
    assert images is None or len(images) <= 64
    if seconds <= 0.1:
        assert len(images) == 64
    if seconds == 3.0:
        assert len(images) >= 4


def test_the_first_lines_of_a_run(tmp_path, capsys):
    """The split of a folder, the size of the run, and how long it will take."""
    pictures(tmp_path / "pictures", 30)
    given = {"size": 8, "pairs": (1, 1), "filters": (2, 1), "sample_every": 0, "batch_size": 2}
    run, data = tmp_path / "run", str(tmp_path / "pictures")
    train("folder", run, data=data, progress=Progress(Console()), max_steps=3, **given)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "folder: 27 training, 3 test, 1 held out of training"
    assert "parameters; 3 steps of 2 images on" in lines[1]


def test_the_time_is_estimated(tmp_path, tiny, monkeypatch, capsys):
    from mintnet.training.loop import Run

    count = Run._count
    monkeypatch.setattr(Run, "_count", lambda self, outcome, _: count(self, outcome, 30.0))
    tiny(tmp_path / "run", progress=Progress(Console()))
    assert "about 2 minutes to go, 30 s a step" in capsys.readouterr().out


def test_no_validation_trains_on_everything(tmp_path, tiny):
    figures = tiny(tmp_path / "run", validation=0.0)
    assert figures["best"] is None and not (tmp_path / "run" / "best").exists()


def pictures(folder, count):
    folder.mkdir()
    for k in range(count):
        Image.new("RGB", (16, 16), (k, 2 * k, 3 * k)).save(folder / f"{k}.png")


def test_a_folder_of_pictures(tmp_path):
    pictures(tmp_path / "pictures", 20)
    options = {"pairs": (1, 1), "filters": (2, 1), "max_steps": 2, "batch_size": 4}
    given = {"data": str(tmp_path / "pictures"), "sample_every": 0, "batch_size": 4}
    train("folder", tmp_path / "run", size=8, grey=True, **{**options, **given})
    assert Flow.load(tmp_path / "run").shape == (1, 8, 8)
    # a model to start from brings size, colour and network
    train("folder", tmp_path / "two", init=str(tmp_path / "run"), max_steps=1, **given)
    assert Flow.load(tmp_path / "two").shape == (1, 8, 8)


def test_places_where_there_is_no_model(tmp_path):
    with pytest.raises(ModelFileError, match="expected a run folder, a saved model folder or"):
        locate(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ModelFileError, match="not saved any weights"):
        locate(tmp_path)
