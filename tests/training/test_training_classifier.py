"""Classifiers in the loop: what is learned, kept, resumed and refused."""

import pytest
import torch
from training_processes import finish, start, state

from mintnet.data import ImageData, load
from mintnet.models import Classifier
from mintnet.models.locate import load_model
from mintnet.training import RECIPES, Accuracy, Recipe, RunError, evaluate, train
from mintnet.training.augment import augmented, cropped
from mintnet.training.build import build_task
from mintnet.training.evaluation import Calibration
from mintnet.training.optimizers import make_optimizer
from mintnet.training.task import Batch, ClassificationTask

TINY = {"pairs": [1, 1], "filters": [1, 1], "batch_size": 32, "preset": "digits-classifier"}


def tiny(run, **given):
    options = {"pairs": (1, 1), "batch_size": 32, "checkpoint_every": 5, **given}
    return train("digits-classifier", run, **options)


def build(preset, data, **given):
    return build_task(Recipe.of(preset, **given), data).model


def test_a_classifier_learns(tmp_path):
    figures = tiny(tmp_path / "run", max_steps=120, learning_rate=1e-2)
    assert figures["figure"] == "error" and figures["validation"]["error"] < 0.3
    model = load_model(tmp_path / "run")
    assert isinstance(model, Classifier)
    found = evaluate(model, load("digits", "test"))
    assert found.accuracy > 0.7
    assert not (tmp_path / "run" / "samples").exists()


@pytest.mark.slow
def test_two_processes_keep_one_set_of_statistics(tmp_path):
    options = {**TINY, "max_steps": 4, "checkpoint_every": 2}
    figures = finish(start(run=str(tmp_path / "run"), devices="2", **options))
    assert figures["finished"]
    model = state(tmp_path / "run")["model"]
    assert all(value.isfinite().all() for value in model.values())


def test_loss_and_figures():
    model = Classifier.preset("digits")
    data = load("digits", "test")
    batch = Batch(data.images[:8], data.labels[:8], torch.arange(8), seed=0, draw=0)
    for training in (True, False):
        measured = ClassificationTask(model.train(training), 0.2).measure(batch)
        log_probs = model(batch.images)
        nats = -log_probs.gather(1, batch.labels[:, None])[:, 0]
        smooth = 0.8 * nats - 0.2 * log_probs.mean(1) if training else nats
        torch.testing.assert_close(measured["nats"], nats)
        torch.testing.assert_close(measured["loss"], smooth)
        wrong = log_probs.argmax(1) != batch.labels
        assert torch.equal(measured["error"], wrong.float())


def test_crops():
    images = torch.arange(1, 2 * 5 * 28 * 28 + 1).reshape(5, 2, 28, 28).float()
    index = torch.tensor([7, 1, 30, 4, 9])
    whole = cropped(images, 3, 2, index)
    assert torch.equal(cropped(images[1:3], 3, 2, index[1:3]), whole[1:3])
    assert not torch.equal(cropped(images, 3, 3, index), whole)
    shifts = set()
    many = images[:1].expand(400, -1, -1, -1)
    for moved in cropped(many, 0, 0, torch.arange(400)):
        place = (moved[0] == images[0, 0, 14, 14]).nonzero()[0] - 14
        dy, dx = place.tolist()
        shifts.add((dy, dx))
        y, x = torch.meshgrid(torch.arange(28) - dy, torch.arange(28) - dx, indexing="ij")
        inside = (y >= 0) & (y < 28) & (x >= 0) & (x < 28)
        expected = torch.where(inside, images[0][:, y.clamp(0, 27), x.clamp(0, 27)], 0.0)
        assert torch.equal(moved, expected)
    assert {dy for dy, _ in shifts} == {dx for _, dx in shifts} == set(range(-4, 5))


def test_augmentations_are_for_training_alone(tmp_path, monkeypatch):
    seen, measure = [], ClassificationTask.measure

    def spy(self, batch):
        seen.append((self.model.training, batch.images, batch.index))
        return measure(self, batch)

    monkeypatch.setattr(ClassificationTask, "measure", spy)
    tiny(tmp_path / "run", max_steps=2)
    data = load("digits", "train").images
    for training, images, index in seen:
        assert torch.equal(images, data[index]) != training
    kinds = {augmented(data[:4], kind, 0, 0, torch.arange(4)).shape for kind in ("none", "flip")}
    assert kinds == {(4, 1, 8, 8)}


def test_decay_is_for_matrices():
    model = Classifier.preset("digits")
    groups = make_optimizer(model, RECIPES["mnist-classifier"]).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    decays, rest = (group["params"] for group in groups)
    assert len(decays) == 3 * len(model.layers()) + 1
    assert len(decays) + len(rest) == len(list(model.parameters()))


def test_what_cannot_be_trained(tmp_path, raises_with):
    run = tmp_path / "run"
    with raises_with(RunError, "at least two images"):
        tiny(run, max_steps=2, batch_size=1)
    with raises_with(RunError, "no logit"):
        tiny(tmp_path / "a", logit_lambda=0.1)
    with raises_with(RunError, "no labels to smooth"):
        train("digits", tmp_path / "b", label_smoothing=0.1)
    with raises_with(ValueError, "label_smoothing"):
        Recipe("digits", label_smoothing=1.0)
    data = load("digits", "train")
    same = ImageData("grey", torch.full_like(data.images, 3), data.labels, 17)
    with raises_with(RunError, "constant"):
        build("digits-classifier", same)
    with raises_with(RunError, "no labels"):
        build("digits-classifier", ImageData("grey", data.images, None, 17))
    with raises_with(RunError, "labels from 0 to 10"):
        labels = data.labels.clone()
        labels[0] = 10
        build("digits-classifier", ImageData("grey", data.images, labels, 17))


def test_begin_with_another_classifier(tmp_path):
    tiny(tmp_path / "one", max_steps=3)
    tiny(tmp_path / "two", max_steps=1, learning_rate=1e-12, init=str(tmp_path / "one"))
    one, two = (Classifier.load(tmp_path / name) for name in ("one", "two"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    with pytest.raises(RunError, match="another network"):
        train("digits-classifier", tmp_path / "three", pairs=(2, 1), init=str(tmp_path / "one"))


def test_accuracy_confusion_and_mistakes():
    probabilities = torch.tensor([[0.7, 0.3], [0.1, 0.9], [0.6, 0.4], [0.05, 0.95]])
    found = Accuracy(probabilities.log(), torch.tensor([0, 0, 1, 1]))
    assert found.accuracy == 0.5
    assert found.confusion.tolist() == [[1, 1], [1, 1]]
    assert found.mistakes(5).tolist() == [1, 2]
    assert found.mistakes(1).tolist() == [1]
    expected = -(probabilities.log()[[0, 1, 2, 3], [0, 0, 1, 1]]).mean()
    assert found.nats == pytest.approx(float(expected))


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_what_is_no_probability_has_no_accuracy(value, raises_with):
    classifier, data = Classifier.preset("digits"), load("digits", "test")
    with torch.no_grad():
        classifier.linear.bias[2] = value
    with raises_with(RunError, "log-probabilities", f"{len(data)} of {len(data)}"):
        evaluate(classifier, data)


def test_calibration_against_its_definition():
    torch.manual_seed(1)
    confidence = torch.rand(500)
    right = torch.rand(500) < confidence**2
    found = Calibration.of(confidence, right, bins=10)
    total = 0.0
    for k in range(10):
        inside = (confidence > k / 10) & (confidence <= (k + 1) / 10)
        assert int(found.counts[k]) == int(inside.sum())
        gap = right[inside].double().mean() - confidence[inside].double().mean()
        total += float(inside.sum() * gap.abs()) / 500
    assert found.error == pytest.approx(total)
    assert Calibration.of(torch.ones(3), torch.ones(3) > 0).error == 0
    assert Calibration.of(torch.zeros(3), torch.ones(3) > 0).counts[0] == 3


def test_evaluation_does_not_depend_on_the_batch():
    model, data = Classifier.preset("digits").eval(), load("digits", "test")
    one, two = (evaluate(model, data, batch_size=b).log_probs for b in (7, 360))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)
    with pytest.raises(RunError, match="no labels"):
        evaluate(model, ImageData("digits", data.images, None, 17))


@pytest.mark.parametrize("option", [{"pairs": (1,)}, {"filters": (3,)}, {"kernel_size": 5}])
def test_a_resnet_has_no_mint_layers(option):
    images = torch.randint(0, 256, (20, 1, 28, 28), dtype=torch.uint8)
    data = ImageData("mnist", images, torch.arange(20) % 10)
    with pytest.raises(ValueError, match="a ResNet has none"):
        build("mnist-resnet", data, **option)
