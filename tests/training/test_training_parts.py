"""Order, schedules, averages, recipes, files: the small parts of a run."""

import math

import pytest
import torch

from mintnet.data import load
from mintnet.models import Flow, ModelFileError
from mintnet.models.locate import load_flow, locate
from mintnet.training import RECIPES, Cadence, Plan, Recipe, RunFolder, recipe_for
from mintnet.training.augment import flipped
from mintnet.training.build import build_flow
from mintnet.training.checkpoint import Checkpoint
from mintnet.training.ema import MovingAverage
from mintnet.training.order import held_out, part_of, permutation
from mintnet.training.schedule import learning_rate
from mintnet.training.usual import UsualLoss, tempered


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
    build_flow("digits", load("digits", "train"), 0)
    permutation(0, 0, 10)
    assert torch.equal(before, torch.get_rng_state())


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


def test_parts_of_a_batch_make_up_the_batch():
    batch = torch.arange(11)
    assert torch.equal(torch.cat([part_of(batch, rank, 4) for rank in range(4)]), batch)


def test_the_papers_schedules():
    mnist = RECIPES["mnist"]
    total = mnist.epochs * 10
    rates = [learning_rate(mnist, epoch * 10, total) for epoch in (0, 249, 250, 349, 350, 399)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    cifar = RECIPES["cifar10"]
    assert learning_rate(cifar, 0, 100) == 1e-3
    assert learning_rate(cifar, 50, 100) == pytest.approx(5e-4)
    assert learning_rate(cifar, 100, 100) == pytest.approx(0, abs=1e-12)


def test_linear_and_warmup():
    recipe = Recipe(learning_rate=2.0, schedule="linear", hold=0.5, warmup=4)
    rates = [learning_rate(recipe, step, 20) for step in (0, 3, 10, 15, 19)]
    assert rates == pytest.approx([0.5, 2.0, 2.0, 1.0, 0.2])


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
        Recipe(**wrong)


def test_a_plan_survives_json():
    import json

    plan = Plan.of("digits", pairs=(1, 2), filters=(3, 4), milestones=(0.5,), schedule="step")
    saved = json.loads(json.dumps({"plan": plan.to_dict()}))
    assert Plan.resumed(saved, "run", "digits") == plan
    assert Plan.resumed(saved, "run", "digits", pairs=[1, 2], epochs=None) == plan
    with pytest.raises(ValueError, match="unknown setting"):
        Recipe.from_dict({"momentum": 0.9})


def test_moving_average_is_what_is_saved(tmp_path, tiny):
    tiny(tmp_path / "run", ema=0.9, max_steps=5)
    state = Checkpoint.read(tmp_path / "run" / "checkpoint.pt")
    flow = load_flow(tmp_path / "run")
    for name, parameter in flow.named_parameters():
        mask = parameter != 0  # masked weights are not saved
        assert torch.equal(parameter[mask], state.average[name][mask])
        assert not torch.equal(state.model[name], state.average[name])


def test_moving_average_by_hand():
    model = torch.nn.Linear(1, 1, bias=False)
    average = MovingAverage(model, 0.9)
    expected = model.weight.item()
    for step in range(5):
        with torch.no_grad():
            model.weight.fill_(float(step))
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        average.update(model, step)
    assert average.weights["weight"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "tf32", "float64"])
def test_precisions(tmp_path, tiny, precision):
    figures = tiny(tmp_path / "run", precision=precision, max_steps=3)
    plain = tiny(tmp_path / "plain", max_steps=3)
    assert figures["validation"]["bpd"] == pytest.approx(plain["validation"]["bpd"], abs=0.02)


def test_accumulation_changes_nothing_but_memory(tmp_path, tiny):
    tiny(tmp_path / "one", precision="float64", max_steps=3)
    tiny(tmp_path / "two", precision="float64", max_steps=3, accumulate=5)
    a, b = (Checkpoint.read(tmp_path / run / "checkpoint.pt").model for run in ("one", "two"))
    assert all((a[name] - b[name]).abs().max() < 1e-10 for name in a)


def test_what_a_run_leaves(tmp_path, tiny):
    cadence = Cadence(samples=10, checkpoint=0, sample_count=4)
    figures = tiny(tmp_path / "run", cadence, epochs=1, max_steps=0, batch_size=100)
    folder = RunFolder(tmp_path / "run")
    assert folder.read_configuration()["plan"]["recipe"]["batch_size"] == 100
    kinds = {row["kind"] for row in folder.read_metrics()}
    assert kinds == {"train", "validation"}
    assert sorted(p.name for p in folder.samples.iterdir()) == [
        "step_0000010.png",
        "step_0000013.png",
    ]
    assert (folder.path / "tensorboard").is_dir()
    assert figures["best"] == figures["validation"]["bpd"]
    for place in (folder.path, folder.last, folder.best):
        assert Flow.load(place).shape == load_flow(place).shape == (1, 8, 8)


def test_no_validation_trains_on_everything(tmp_path, tiny):
    figures = tiny(tmp_path / "run", validation=0.0)
    assert figures["best"] is None and not (tmp_path / "run" / "best").exists()


def test_a_folder_of_pictures(tmp_path):
    from PIL import Image

    from mintnet.training import train

    (tmp_path / "pictures").mkdir()
    for k in range(20):
        Image.new("RGB", (16, 16), (k, 2 * k, 3 * k)).save(tmp_path / "pictures" / f"{k}.png")
    options = {"size": 8, "pairs": (1, 1), "filters": (2, 1), "max_steps": 2, "batch_size": 4}
    cadence = Cadence(samples=0)
    data = str(tmp_path / "pictures")
    train("folder", tmp_path / "run", data=data, cadence=cadence, **options)
    assert Flow.load(tmp_path / "run").shape == (3, 8, 8)


def test_places_where_there_is_no_model(tmp_path):
    with pytest.raises(ModelFileError, match="expected a run folder, a saved model folder or"):
        locate(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ModelFileError, match="not saved any weights"):
        locate(tmp_path)


def test_images_far_out_have_the_gradient_of_others():
    z = torch.tensor([1.0, 30.0, 1e4, 1e6], dtype=torch.float64, requires_grad=True)
    losses = z.square() / 2
    found = tempered(losses, ceiling=500.0, reach=50.0)
    assert torch.equal(found[:2], losses[:2])  # as they are
    assert bool((found[2:] > 500).all() and (found[2:] < 500 + 50 * 30).all())
    found.sum().backward(retain_graph=True)
    relative = (z.grad * z).detach()  # by so much the loss falls as z does
    assert relative[1] == 900 and bool((relative[2:] < 101).all() and (relative[2:] > 90).all())
    nothing_yet = tempered(losses, math.inf, 50.0)
    assert torch.equal(nothing_yet, losses)
    z.grad = None
    nothing_yet.sum().backward()
    assert torch.equal(z.grad, z.detach())
    assert tempered(losses, 1.0, math.inf) is losses  # a classifier's


def test_the_ceiling_and_the_bound_follow_the_usual_loss():
    usual = UsualLoss()
    assert usual.ceiling(5.0) == math.inf
    for _ in range(60):
        usual.add(100.0)
    assert usual.ceiling(5.0) == pytest.approx(105.0)
