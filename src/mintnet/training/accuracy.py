"""How good a classifier is: accuracy, confusion, calibration, and its most confident mistakes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mintnet.data import ImageData
from mintnet.models.labelled import ImageClassifier
from mintnet.training.classification import check_labels
from mintnet.training.devices import Devices, float32_math, make_trainer, quiet
from mintnet.training.files import RunError

BINS = 15


@dataclass(frozen=True)
class Calibration:
    """Whether confidence is what it says: of the images said to be sure to 90 %, are 90 % right?

    Images are put into bins of equal width by the probability of their predicted class.

    Attributes:
        counts: (bins,) images in each bin.
        confidence: (bins,) their mean probability; 0 for empty bins.
        accuracy: (bins,) the share of them that is right; 0 for empty bins.
    """

    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def error(self) -> float:
        """Expected calibration error: Σ (n_b / n) |accuracy_b − confidence_b|."""
        gaps = (self.accuracy - self.confidence).abs()
        return float((self.counts * gaps).sum() / self.counts.sum())

    def to_dict(self) -> dict[str, Any]:
        """The bins as plain data."""
        return {
            "expected_calibration_error": self.error,
            "counts": self.counts.long().tolist(),
            "confidence": self.confidence.tolist(),
            "accuracy": self.accuracy.tolist(),
        }


def calibration(confidence: Tensor, right: Tensor, bins: int = BINS) -> Calibration:
    """The calibration of predictions. Shapes: (N,) in [0, 1], and (N,) boolean.

    Examples:
        >>> found = calibration(torch.tensor([0.9, 0.9, 0.6]), torch.tensor([True, False, True]))
        >>> round(found.error, 3)           # (2 · |0.5 − 0.9| + |1 − 0.6|) / 3
        0.4
    """
    confidence = confidence.double()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    counts = torch.zeros(bins, dtype=torch.float64).index_add_(
        0, place, torch.ones_like(confidence)
    )
    sums = (torch.zeros_like(counts).index_add_(0, place, v) for v in (confidence, right.double()))
    said, true = (total / counts.clamp(min=1) for total in sums)
    return Calibration(counts, said, true)


@dataclass(frozen=True)
class Accuracy:
    """Figures of a classifier on a set of images.

    Attributes:
        log_probs: (N, classes) for every image, all finite.
        labels: (N,) the truth.
    """

    log_probs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        broken = int((~self.log_probs.isfinite()).any(1).sum())
        if broken:  # argmax would take NaN for a prediction
            raise RunError(
                f"the classifier gives NaN or infinite log-probabilities for {broken} of "
                f"{len(self.log_probs)} images, so it has no accuracy; its weights are damaged"
            )

    @property
    def predictions(self) -> Tensor:
        """(N,) the most probable class."""
        return self.log_probs.argmax(1)

    @property
    def right(self) -> Tensor:
        """(N,) whether that is the truth."""
        return self.predictions == self.labels

    @property
    def accuracy(self) -> float:
        """The share of images that is classified rightly."""
        return float(self.right.double().mean())

    @property
    def standard_error(self) -> float:
        """Of the accuracy, as that of a share: √(a (1 − a) / N)."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / len(self.labels))

    @property
    def nats(self) -> float:
        """The mean cross entropy."""
        return float(-self.log_probs.double().gather(1, self.labels[:, None]).mean())

    @property
    def confidence(self) -> Tensor:
        """(N,) the probability of the predicted class."""
        return self.log_probs.amax(1).exp()

    @property
    def confusion(self) -> Tensor:
        """(classes, classes) how many images of each true class (row) were called what (column)."""
        classes = self.log_probs.shape[1]
        pairs = self.labels * classes + self.predictions
        return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)

    @property
    def calibration(self) -> Calibration:
        """Whether confidence is what it says."""
        return calibration(self.confidence, self.right)

    def mistakes(self, most: int) -> Tensor:
        """Places of wrongly classified images, the most confident first. Shape: (≤ most,)."""
        wrong = (~self.right).nonzero().flatten()
        order = self.confidence[wrong].argsort(descending=True, stable=True)
        return wrong[order][:most]

    def to_dict(self, mistakes: int = 24) -> dict[str, Any]:
        """The figures as plain data."""
        places = self.mistakes(mistakes)
        return {
            "accuracy": self.accuracy,
            "standard_error": self.standard_error,
            "errors": int((~self.right).sum()),
            "images": len(self.labels),
            "nats": self.nats,
            "confusion": self.confusion.tolist(),
            "calibration": self.calibration.to_dict(),
            "most_confident_mistakes": [
                {
                    "image": int(place),
                    "label": int(self.labels[place]),
                    "predicted": int(self.predictions[place]),
                    "confidence": float(self.confidence[place]),
                }
                for place in places
            ],
        }


def evaluate_classifier(
    classifier: ImageClassifier,
    data: ImageData,
    *,
    batch_size: int = 100,
    devices: Devices | None = None,
) -> Accuracy:
    """Log-probabilities of all images, in true float32 (or the model's float64).

    Args:
        classifier: the model.
        data: the images, with labels.
        batch_size: images at a time, on each device.
        devices: where; one device if not given.

    Examples:
        >>> from mintnet.data import load
        >>> from mintnet.models import Classifier
        >>> found = evaluate_classifier(Classifier.preset("digits"), load("digits", "test"))
        >>> found.log_probs.shape, int(found.confusion.sum())
        (torch.Size([360, 10]), 360)
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")
    if (data.shape, data.levels) != (classifier.shape, classifier.levels):
        raise RunError(
            f"the model is one of images of shape {classifier.shape} with {classifier.levels} "
            f"levels; the images of {data.name} have shape {data.shape} and {data.levels} levels"
        )
    check_labels(data, classifier.classes, "evaluation")
    assert data.labels is not None
    from mintnet.training.evaluation_module import ClassifierEvaluation

    with quiet(), float32_math(tf32=False):
        module = ClassifierEvaluation(classifier, data.images, batch_size)
        make_trainer(devices or Devices(), logger=False).test(module, verbose=False)
    return Accuracy(module.log_probs, data.labels)
