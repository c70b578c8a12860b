"""Figures of a classifier: accuracy, confusion, calibration, and its most confident mistakes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mintnet.training.folder import RunError


@dataclass(frozen=True)
class Calibration:
    """Whether confidence is what it says; each entry is of a bin of confidence, (bins,)."""

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


def calibration(confidence: Tensor, right: Tensor, bins: int = 15) -> Calibration:
    """The calibration of predictions. Shapes: (N,) in [0, 1], and (N,) boolean."""
    confidence = confidence.double()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    counts = torch.zeros(bins, dtype=torch.float64)
    counts.index_add_(0, place, torch.ones_like(confidence))
    sums = (torch.zeros_like(counts).index_add_(0, place, v) for v in (confidence, right.double()))
    return Calibration(counts, *(total / counts.clamp(min=1) for total in sums))


@dataclass(frozen=True)
class Accuracy:
    """Figures of a classifier, from log-probabilities (N, classes) and labels (N,)."""

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
        """(N,) whether that is the label."""
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
        """(classes, classes) how many images of each label (row) were called what (column)."""
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
        columns = (self.labels, self.predictions, self.confidence)
        names = ("label", "predicted", "confidence")
        return {
            "accuracy": self.accuracy,
            "standard_error": self.standard_error,
            "errors": int((~self.right).sum()),
            "images": len(self.labels),
            "nats": self.nats,
            "confusion": self.confusion.tolist(),
            "calibration": self.calibration.to_dict(),
            "most_confident_mistakes": [
                {"image": int(k), **{n: c[k].item() for n, c in zip(names, columns, strict=True)}}
                for k in self.mistakes(mistakes)
            ],
        }
