"""Order, schedules, recipes, samples, files: the small parts of a run."""

import itertools
import json
import math
import re
import time
from dataclasses import asdict

import pytest
import torch
from PIL import Image
from rich.console import Console
from training_processes import state

from mintnet.data import ImageData, load
from mintnet.models import Classifier, Flow, ModelFileError, ResNet
from mintnet.models.base import Model
from mintnet.models.storage import locate
from mintnet.training import RECIPES, Progress, Recipe, RunError, RunFolder, evaluate, train
from mintnet.training.build import build_task
from mintnet.training.data import augmented, held_out, permutation
from mintnet.training.optimizers import learning_rate
from mintnet.training.output import Sampler
from mintnet.training.recipe import OPTIONS


def test_the_order_is_a_function_of_seed_and_epoch():
    torch.manual_seed(0)
    one = permutation(3, "order 7", 100)
    torch.manual_seed(1)
    assert torch.equal(one, permutation(3, "order 7", 100))
    assert not torch.equal(one, permutation(3, "order 8", 100))
    assert not torch.equal(one, permutation(4, "order 7", 100))
    assert torch.equal(one.sort().values, torch.arange(100))


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


def test_a_recipe_survives_json():
    shape = {"pairs": (1, 2), "filters": (3, 4), "milestones": (0.5,), "schedule": "step"}
    recipe = Recipe.of("digits", **shape)
    saved = Recipe(**json.loads(json.dumps(asdict(recipe))))
    assert saved == recipe
    assert saved.resumed("run", "digits", pairs=[1, 2], epochs=None, devices="2").devices == "2"


def test_every_option_says_what_it_is():
    assert all(entry.metadata["help"].endswith(".") for entry in OPTIONS.values())
    assert all(e.metadata["shown"] for e in OPTIONS.values() if e.default is None)


def test_ema_weights_are_what_is_saved(tmp_path, tiny):
    tiny(tmp_path / "run", ema=0.9, max_steps=5)
    found, flow = state(tmp_path / "run"), Flow.load(tmp_path / "run")
    for name, parameter in flow.named_parameters():
        mask = parameter != 0  # masked weights are not saved
        assert torch.equal(parameter[mask], found["averaged"][name][mask])
        assert not torch.equal(found["model"][name], found["averaged"][name])


@pytest.mark.parametrize("precision", ["bf16", "tf32", "float64"])
def test_precisions_and_no_validation(tmp_path, tiny, precision):
    figures = tiny(tmp_path / "run", precision=precision, max_steps=3)
    plain = tiny(tmp_path / "plain", max_steps=3)
    assert figures["validation"]["bpd"] == pytest.approx(plain["validation"]["bpd"], abs=0.02)
    assert tiny(tmp_path / "none", max_steps=1, validation=0.0)["best"] is None


def test_what_a_run_leaves(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr("mintnet.training.output.LEAST", 1e9)  # however busy the machine is
    given = {"epochs": 1, "max_steps": 0, "batch_size": 100, "sample_every": 10}
    figures = tiny(tmp_path / "run", checkpoint_every=0, **given)
    folder = RunFolder(tmp_path / "run")
    assert folder.read()["recipe"]["batch_size"] == 100
    assert {row["kind"] for row in folder.metrics()} == {"train", "validation", "samples"}
    names = ["step_0000010.png", "step_0000013.png"]
    assert sorted(path.name for path in folder.samples.iterdir()) == names
    assert not (folder.path / "tensorboard").exists()
    assert figures["best"] == figures["validation"]["bpd"]
    held = round(len(load("digits", "train")) * folder.read()["recipe"]["validation"])
    for place in (folder.path, folder.last, folder.best):
        flow = Flow.load(place)
        assert flow.shape == (1, 8, 8)
        assert flow.scores is not None and len(flow.scores["statistics"]) == held


def test_curves_for_tensorboard(tmp_path, tiny, monkeypatch):
    pytest.importorskip("tensorboard")
    tiny(tmp_path / "run", tensorboard=True)
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(RunError, match=r"pip install 'mintnet\[tensorboard\]'"):
        tiny(tmp_path / "other", tensorboard=True)
    assert not (tmp_path / "other" / "run.json").exists()  # it can be begun without the option


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


def test_the_time_is_estimated(monkeypatch, capsys):
    now = itertools.count(0, 30)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    progress = Progress(Console())
    told = progress("training")
    now = itertools.count(0, 30)
    for step in range(11, 14):
        told(step, 40, "bpd 2.000")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "training" and lines[-1].startswith("training: 32%  bpd 2.000  0:")
    assert progress.left.endswith(" to go")


def test_shares_never_run_backwards(monkeypatch, capsys):
    """What begins anew is named as the next part."""
    now = itertools.count(0, 60)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    told = Progress(Console())("there and back")
    for done, total in ((1, 4), (3, 4), (4, 4), (1, 429), (200, 429)):
        told(done, total)
    assert [line.partition("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "there and back",
        *("there and back: 25%", "there and back: 75%"),
        *("there and back, part 2: 0%", "there and back, part 2: 47%"),
    ]


def test_each_epoch_says_how_long_it_will_take(tmp_path, tiny, capsys):
    tiny(tmp_path / "run", epochs=3, max_steps=0, batch_size=300, progress=Progress(Console()))
    first, *_, last = [s for s in capsys.readouterr().out.splitlines() if s.startswith("epoch")]
    assert re.search(r"validation bpd \S+  0:\d\d:\d\d to go$", first) and "to go" not in last


def pictures(folder, count):
    folder.mkdir()
    for k in range(count):
        Image.new("RGB", (16, 16), (k, 2 * k, 3 * k)).save(folder / f"{k}.png")


def test_a_folder_of_pictures(tmp_path, capsys):
    pictures(tmp_path / "pictures", 20)
    options = {"pairs": (1, 1), "filters": (2, 1), "max_steps": 2, "batch_size": 4}
    given = {"data": str(tmp_path / "pictures"), "sample_every": 0, "batch_size": 4}
    out = Progress(Console(width=200))
    train("folder", tmp_path / "run", size=8, grey=True, progress=out, **{**options, **given})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "folder: 18 training, 2 test, 1 held out of training"
    assert "parameters; 2 steps of 4 images on" in lines[1]
    assert Flow.load(tmp_path / "run").shape == (1, 8, 8)
    # a model to start from brings size, colour and network
    train("folder", tmp_path / "two", init=str(tmp_path / "run"), max_steps=1, **given)
    assert Flow.load(tmp_path / "two").shape == (1, 8, 8)


@pytest.mark.parametrize("kind", ["crop", "flip", "cutout"])
def test_augmentation_follows_seed_epoch_and_image(kind):
    images = torch.arange(1, 20 * 28 * 28 + 1).reshape(20, 1, 28, 28).float()
    index = torch.arange(20)
    whole = augmented(images, kind, 0, 2, index)
    assert torch.equal(augmented(images[5:9], kind, 0, 2, index[5:9]), whole[5:9])
    assert not torch.equal(augmented(images, kind, 0, 3, index), whole)
    assert sum(not torch.equal(a, b) for a, b in zip(whole, images, strict=True)) > 4


def test_augmentation_by_hand():
    images = torch.arange(1, 2 * 28 * 28 + 1).reshape(1, 2, 28, 28).float().expand(400, -1, -1, -1)
    index, shifts = torch.arange(400), set()
    for moved in augmented(images, "crop", 0, 0, index):
        dy, dx = ((moved[0] == images[0, 0, 14, 14]).nonzero()[0] - 14).tolist()
        shifts.add((dy, dx))
        y, x = torch.meshgrid(torch.arange(28) - dy, torch.arange(28) - dx, indexing="ij")
        inside = (y >= 0) & (y < 28) & (x >= 0) & (x < 28)
        expected = torch.where(inside, images[0][:, y.clamp(0, 27), x.clamp(0, 27)], 0.0)
        assert torch.equal(moved, expected)
    assert {dy for dy, _ in shifts} == {dx for _, dx in shifts} == set(range(-4, 5))
    dark = (augmented(images, "cutout", 0, 0, index) == 0).sum((1, 2, 3)) / 2
    assert int(dark.max()) == 64 and int(dark.min()) >= 16


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 0} for name in ("batch_size", "learning_rate", "epochs", "threads", "nodes")),
        *({name: -1} for name in ("clip", "warmup", "max_steps", "checkpoint_every", "validation")),
        *({name: 1.0} for name in ("ema", "validation")),
        *({name: "x"} for name in ("schedule", "precision", "augmentation", "accelerator")),
        {"learning_rate": math.nan},
        {"milestones": (250,), "schedule": "step"},
        {"milestones": (0.5,)},
        {"lr": 1},
    ],
)
def test_options_that_make_no_sense(tmp_path, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        train("digits", tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


LABELLED = load("digits", "train")
UNLABELLED = ImageData("a", LABELLED.images, None, 17)


def variant(preset="digits-classifier", labels=None, **given):
    """A task for images that are all the same if there are no others to take."""
    data = ImageData("grey", given.pop("images", LABELLED.images), labels, given.pop("levels", 17))
    return lambda _: build_task(Recipe.of(preset, **given), data)


def trained(preset="digits-classifier", **given):
    return lambda run: train(preset, run, **{"max_steps": 2, **given})


MNIST = torch.zeros(4, 1, 28, 28).byte()
MNIST[0] = 9
RESNET = {"preset": "mnist-resnet", "images": MNIST, "levels": 256, "labels": torch.arange(4)}


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (trained(batch_size=1), "at least two images"),
        (trained(logit_lambda=0.1), "no --logit-lambda"),
        (trained("digits", label_smoothing=0.1), "no --label-smoothing"),
        (trained("digit"), "unknown preset 'digit'; choose one of digits"),
        (trained("digits", pairs=(1,), filters=(1, 2)), "pairs"),
        (trained("digits", devices="0"), "devices"),
        (trained("digits", devices="all"), "devices"),
        (trained("digits", accelerator="mps"), "devices"),
        (trained("mnist"), "--data"),
        (trained("mnist", data="nowhere"), "--data"),
        (variant(images=torch.full_like(LABELLED.images, 3), labels=LABELLED.labels), "constant"),
        (variant(), "no labels"),
        (variant(labels=LABELLED.labels + 1), "labels from 1 to 10"),
        (variant(**RESNET, kernel_size=5), "is a ResNet and has no --kernel-size"),
        (lambda _: evaluate(Flow.preset("digits"), LABELLED, draws=0), "draws must be at least 1"),
        (lambda _: evaluate(Flow.preset("mnist"), LABELLED), r"\(1, 28, 28\) with 256 levels"),
        (lambda _: evaluate(Classifier.preset("digits"), UNLABELLED), "no labels"),
    ],
)
def test_what_cannot_be_trained_or_evaluated(tmp_path, act, words):
    with pytest.raises(ValueError, match=words):
        act(tmp_path / "run")
    assert "at least two" in words or not (tmp_path / "run").exists()


def test_a_resnet_is_built():
    assert isinstance(variant(**RESNET)(None).model, ResNet)


@pytest.mark.parametrize("preset", ["digits", "digits-classifier"])
def test_start_from_the_weights_of_another_run(tmp_path, tiny, preset):
    tiny(tmp_path / "one", preset)
    start = {"init": str(tmp_path / "one"), "max_steps": 1}
    tiny(tmp_path / "two", preset, learning_rate=1e-9, **start)
    one, two = (Model.load(tmp_path / name) for name in ("one", "two"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    told = r"filters .3, 1. and not .2, 1.; leave out --filters"
    with pytest.raises(RunError, match=f"another network: {told}"):
        tiny(tmp_path / "three", preset, **start, filters=(2, 1))


def test_places_where_there_is_no_model(tmp_path):
    with pytest.raises(ModelFileError, match="expected a run folder, a saved model folder, "):
        locate(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ModelFileError, match="not saved any weights"):
        locate(tmp_path)
