"""Classifiers in the loop: what is learned, kept, resumed and refused."""

import pytest
import torch

from mintnet.data import load
from mintnet.models import Classifier
from mintnet.models.base import Model
from mintnet.training import RECIPES, Accuracy, RunError, evaluate
from mintnet.training.data import augmented
from mintnet.training.evaluation import Calibration
from mintnet.training.optimizers import make_optimizer
from mintnet.training.step import Batch, ClassificationTask

PRESET = "digits-classifier"


def test_a_classifier_learns(tmp_path, tiny):
    options = {"batch_size": 32, "max_steps": 120, "learning_rate": 1e-2}
    figures = tiny(tmp_path / "run", PRESET, **options)
    assert figures["figure"] == "error" and figures["validation"]["error"] < 0.3
    model = Model.load(tmp_path / "run")
    assert isinstance(model, Classifier)
    assert evaluate(model, load("digits", "test")).accuracy > 0.7
    assert not (tmp_path / "run" / "samples").exists()


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
        assert torch.equal(measured["error"], (log_probs.argmax(1) != batch.labels).float())


def test_augmentations_are_for_training_alone(tmp_path, tiny, monkeypatch):
    seen, measure = [], ClassificationTask.measure

    def spy(self, batch):
        seen.append((self.model.training, batch.images, batch.index))
        return measure(self, batch)

    monkeypatch.setattr(ClassificationTask, "measure", spy)
    tiny(tmp_path / "run", PRESET, max_steps=2)
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
