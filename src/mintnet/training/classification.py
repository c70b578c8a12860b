"""Training of classifiers: cross entropy, and the share of mistakes beside it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.data import ImageData
from mintnet.models.labelled import ImageClassifier
from mintnet.training.files import RunError
from mintnet.training.task import Batch, FastPath


class ClassificationTask:
    """The loss is − log p of the true class, in nats.

    Figures are ``error``, 1 for a mistake and 0 otherwise, and ``nats``, the loss without label
    smoothing. Weights are chosen by the error.

    Args:
        classifier: to be trained.
        label_smoothing: the share of the truth that is spread over all classes, in training.

    Examples:
        >>> import torch
        >>> from mintnet.models import Classifier
        >>> task = ClassificationTask(Classifier.preset("digits").eval())
        >>> images, labels = torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(3).long()
        >>> measured = task.measure(Batch(images, labels, torch.arange(3), seed=0, draw=0))
        >>> {name: tuple(values.shape) for name, values in measured.items()}
        {'loss': (3,), 'error': (3,), 'nats': (3,)}
    """

    figure_names: tuple[str, ...] = ("error", "nats")
    draws_samples: bool = False
    reach: float = math.inf

    def __init__(self, classifier: ImageClassifier, label_smoothing: float = 0.0) -> None:
        self.classifier, self.label_smoothing = classifier, label_smoothing
        self.fast: FastPath | None = None

    @property
    def model(self) -> nn.Module:
        return self.classifier

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        assert batch.labels is not None  # `check_labels` has seen to it
        classifier = self.classifier
        if classifier.training and len(batch.images) < 2:
            raise RunError(
                "batch normalization needs at least two images in each piece of a batch; got one: "
                "take a larger batch size, or fewer pieces (--accumulate) or devices"
            )
        fast = self.fast if classifier.training else None
        how = (fast.dtype, fast.compiled) if fast else ()
        logits = classifier.logits(classifier.prepared(batch.images), *how)
        log_probs = logits.to(classifier.dtype).log_softmax(1)  # mixed precision ends here
        nats = F.nll_loss(log_probs, batch.labels, reduction="none")
        loss = nats
        if classifier.training and self.label_smoothing:
            share = self.label_smoothing
            loss = (1 - share) * nats - share * log_probs.mean(1)
        wrong = log_probs.argmax(1) != batch.labels
        return {"loss": loss, "error": wrong.to(loss.dtype), "nats": nats}

    def why_not_fast(self) -> str:
        return ""

    def describe(self) -> dict[str, Any]:
        return {**self.classifier.describe(), "parameters": self.classifier.parameter_count()}

    def save(self, folder: Path, **extra: Any) -> None:
        self.classifier.save(folder, **extra)

    def samples(self, count: int, seed: int) -> Tensor | None:
        return None


def check_labels(data: ImageData, classes: int, where: str) -> None:
    """Raise `RunError` unless these images can teach or test a classifier.

    Examples:
        >>> import torch
        >>> grey = ImageData("grey", torch.zeros(2, 1, 4, 4, dtype=torch.uint8))
        >>> check_labels(grey, 10, "training")
        Traceback (most recent call last):
        mintnet.training.files.RunError: grey has no labels, and a classifier needs ...
    """
    if data.labels is None:
        raise RunError(f"{data.name} has no labels, and a classifier needs them for {where}")
    low, high = int(data.labels.min()), int(data.labels.max())
    if low < 0 or high >= classes:
        raise RunError(
            f"{data.name} has labels from {low} to {high}; the classifier knows {classes} "
            f"classes, 0 to {classes - 1}"
        )


def check_variety(data: ImageData) -> None:
    """Raise `RunError` where there is nothing to learn from a set of images.

    Examples:
        >>> import torch
        >>> grey = ImageData("grey", torch.zeros(2, 1, 4, 4, dtype=torch.uint8))
        >>> check_variety(grey)
        Traceback (most recent call last):
        mintnet.training.files.RunError: all images of grey are the same constant colour: ...
    """
    if bool((data.images == data.images[:1, :, :1, :1]).all()):
        raise RunError(
            f"all images of {data.name} are the same constant colour: batch normalization would "
            f"divide by 0; give images that differ"
        )
