"""What is learned: a model and a loss for each image. The training step knows no more than this."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.data import ImageData
from mintnet.models.classifier import ImageClassifier
from mintnet.models.fast import fast_transform
from mintnet.models.flow import Flow
from mintnet.models.noise import uniform_noise
from mintnet.training.folder import RunError


@dataclass(frozen=True)
class Batch:
    """Images (batch, C, H, W) uint8, labels (batch,) int64 or None, and what fixes the noise."""

    images: Tensor
    labels: Tensor | None
    index: Tensor
    """(batch,) places in the data set."""
    seed: int
    draw: int | Tensor


@dataclass(frozen=True)
class FastPath:
    """The fast path of training: the dtype of convolutions, and whether layers are compiled."""

    dtype: torch.dtype
    compiled: bool


class DensityTask:
    """Maximum likelihood: the loss is − log p of the dequantized image, in nats.

    Examples:
        >>> task = DensityTask(Flow.preset("digits"))
        >>> images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
        >>> measured = task.measure(Batch(images, None, torch.arange(3), seed=0, draw=0))
        >>> bool((measured["bpd"] == task.model.bits_per_dim(images)).all())
        True
    """

    figures: tuple[str, ...] = ("bpd",)

    def __init__(self, flow: Flow, fast: FastPath | None = None) -> None:
        self.model: Any = flow
        self.fast = fast

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        flow = self.model  # not `log_prob`, which checks the images in each call
        dtype = next(flow.parameters()).dtype
        noise = uniform_noise(batch.seed, batch.draw, batch.index, flow.shape, dtype)
        context = None
        if flow.classes and batch.labels is not None:
            context = F.one_hot(batch.labels, flow.classes).to(dtype)
        net = flow.given(context)
        transform = net.transform
        if self.fast is not None and flow.training:
            transform = partial(fast_transform, net, **vars(self.fast))
        pixels = (batch.images.to(dtype) + noise) / flow.levels
        loss = -flow.log_density(pixels, transform)
        return {"loss": loss, "bpd": loss / (flow.dimensions * math.log(2))}


class ClassificationTask:
    """Cross entropy: the loss is − log p of the true class, in nats, with smoothed labels.

    Figures are ``error``, 1 for a mistake, and ``nats``, the loss without smoothing.
    """

    figures: tuple[str, ...] = ("error", "nats")

    def __init__(self, classifier: ImageClassifier, label_smoothing: float = 0.0) -> None:
        self.model: Any = classifier
        self.label_smoothing = label_smoothing
        self.fast: FastPath | None = None

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        model, training = self.model, self.model.training
        if batch.labels is None or (training and len(batch.images) < 2):
            raise RunError(
                "batch normalization needs at least two images on each device; take a "
                "larger batch size, or fewer devices"
            )
        fast = vars(self.fast) if self.fast and training else {}
        logits = model.logits(model.prepared(batch.images), **fast)
        log_probs = logits.to(model.dtype).log_softmax(1)
        loss = nats = F.nll_loss(log_probs, batch.labels, reduction="none")
        if training and self.label_smoothing:
            loss = (1 - self.label_smoothing) * nats - self.label_smoothing * log_probs.mean(1)
        wrong = log_probs.argmax(1) != batch.labels
        return {"loss": loss, "error": wrong.to(loss.dtype), "nats": nats}


Task = DensityTask | ClassificationTask


def check_labels(data: ImageData, classes: int, where: str) -> Tensor:
    """The labels of images that can teach or test a classifier, or `RunError`."""
    if data.labels is None:
        raise RunError(f"{data.name} has no labels, and a classifier needs them for {where}")
    low, high = int(data.labels.min()), int(data.labels.max())
    if low < 0 or high >= classes:
        raise RunError(
            f"{data.name} has labels from {low} to {high}; the classifier knows {classes} "
            f"classes, 0 to {classes - 1}"
        )
    return data.labels
