"""How good a model is on a whole set of images: bits per dimension, or accuracy."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mintnet.data import ImageData
from mintnet.models.classifier import ImageClassifier
from mintnet.models.flow import Flow
from mintnet.precision import true_float32
from mintnet.training.devices import Devices, make_fabric
from mintnet.training.folder import RunError
from mintnet.training.step import check_labels


@dataclass(frozen=True)
class Evaluation:
    """Mean bits per dimension with its standard error over images, and what they are of."""

    bits_per_dim: float
    standard_error: float
    nats: float
    images: int
    draws: int
    seed: int
    bound: str = "mean"
    label_error: float | None = None  # share of images that Bayes' rule gives a wrong label


@dataclass(frozen=True)
class Calibration:
    """Whether confidence is what it says; each entry is of a bin of confidence, (bins,)."""

    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    @staticmethod
    def of(confidence: Tensor, right: Tensor, bins: int = 15) -> "Calibration":
        """The calibration of predictions. Shapes: (N,) in [0, 1], and (N,) boolean."""
        place = (confidence.double() * bins).ceil().long().clamp(1, bins) - 1
        values = torch.ones_like(confidence), confidence, right
        counts, *sums = (place.bincount(v.double(), minlength=bins) for v in values)
        return Calibration(counts, *(total / counts.clamp(min=1) for total in sums))

    @property
    def error(self) -> float:
        """Expected calibration error: Σ (n_b / n) |accuracy_b − confidence_b|."""
        gaps = (self.accuracy - self.confidence).abs()
        return float((self.counts * gaps).sum() / self.counts.sum())


class Accuracy:
    """Figures of a classifier, from log-probabilities (N, classes) and labels (N,).

    For each image, (N,): ``predictions``, whether they are ``right``, and their probabilities,
    ``confidence``. Of all: ``accuracy``, the share that is right, its ``standard_error``
    √(a (1 − a) / N), ``nats``, the mean cross entropy, ``calibration``, and ``confusion``,
    (classes, classes): how many images of each label (row) were called what (column).
    """

    def __init__(self, log_probs: Tensor, labels: Tensor) -> None:
        self.log_probs, self.labels, (count, classes) = log_probs, labels, log_probs.shape
        if broken := int((~log_probs.isfinite()).any(1).sum()):  # argmax would take NaN
            words = f"NaN or infinite log-probabilities for {broken} of {count} images"
            raise RunError(f"the classifier gives {words}; its weights are damaged")
        self.predictions = log_probs.argmax(1)
        self.right = self.predictions == labels
        self.confidence = log_probs.amax(1).exp()
        self.accuracy = float(self.right.double().mean())
        self.standard_error = math.sqrt(self.accuracy * (1 - self.accuracy) / count)
        self.nats = float(-log_probs.double().gather(1, labels[:, None]).mean())
        pairs = torch.bincount(labels * classes + self.predictions, minlength=classes**2)
        self.confusion = pairs.reshape(classes, classes)
        self.calibration = Calibration.of(self.confidence, self.right)

    def mistakes(self, most: int) -> Tensor:
        """Places of wrongly classified images, the most confident first. Shape: (≤ most,)."""
        wrong = (~self.right).nonzero().flatten()
        return wrong[self.confidence[wrong].argsort(descending=True, stable=True)][:most]

    def to_dict(self) -> dict[str, Any]:
        bins = {name: column.tolist() for name, column in vars(self.calibration).items()}
        columns = {"label": self.labels, "predicted": self.predictions}
        columns["confidence"] = self.confidence
        return {
            "accuracy": self.accuracy,
            "standard_error": self.standard_error,
            "nats": self.nats,
            "errors": int((~self.right).sum()),
            "images": len(self.labels),
            "confusion": self.confusion.tolist(),
            "calibration": {"expected_calibration_error": self.calibration.error, **bins},
            "most_confident_mistakes": [
                {"image": k, **{name: column[k].item() for name, column in columns.items()}}
                for k in self.mistakes(24).tolist()
            ],
        }


@torch.no_grad()
def evaluate(
    model: Flow | ImageClassifier,
    data: ImageData,
    *,
    draws: int = 1,
    bound: str = "mean",
    classify: bool = False,
    seed: int = 0,
    batch_size: int = 100,
    devices: Devices | None = None,
) -> Any:
    """`Evaluation` of a flow or `Accuracy` of a classifier, in true float32 (or its float64).

    The noise of an image follows from seed, draw and its place: figures do not depend on the
    batch size or the number of processes. A class-conditional flow takes the labels of the data,
    and with ``classify`` compares them with `Flow.classify`. ``bound`` is that of `Flow.log_prob`.

    Examples:
        >>> from mintnet import Classifier
        >>> from mintnet.data import load
        >>> evaluate(Flow.preset("digits"), load("digits", "test"), batch_size=180).images
        360
        >>> int(evaluate(Classifier.preset("digits"), load("digits", "test")).confusion.sum())
        360
    """
    if min(draws, batch_size) < 1:
        raise ValueError(f"draws must be at least 1, batch_size too; got {draws} and {batch_size}")
    if (data.shape, data.levels) != (model.shape, model.levels):
        wanted, got = (f"{one.shape} with {one.levels} levels" for one in (model, data))
        raise RunError(f"the model is one of images of shape {wanted}; {data.name} has {got}")
    if classify and (isinstance(model, ImageClassifier) or not model.classes):
        raise ValueError("classify is for class-conditional density models; this one has no labels")
    labels = check_labels(data, model.classes, "evaluation") if model.classes else None
    training, width = model.training, model.classes if isinstance(model, ImageClassifier) else 2
    values = torch.zeros(len(data), width, dtype=torch.float64)
    with true_float32():
        fabric = make_fabric(devices or Devices())
        model.to(fabric.device).eval()
        places = torch.arange(len(data)).tensor_split(fabric.world_size)[fabric.global_rank]
        for part in places.split(batch_size):
            images, index = fabric.to_device((data.images[part], part))
            if isinstance(model, ImageClassifier):
                found = model(images)
            else:
                known = None if labels is None else fabric.to_device(labels[part])
                options: dict[str, Any] = {"labels": known, "draws": draws, "bound": bound}
                bits = model.bits_per_dim(images, seed, 0, index, **options).double()
                wrong = torch.zeros_like(bits)
                if classify:
                    wrong += model.classify(images, seed, draws, index).argmax(1) != known
                found = torch.stack([bits, wrong], 1)
            values[part] = found.double().cpu()
        model.train(training)
        if fabric.world_size > 1:
            values = fabric.all_reduce(values.to(fabric.device), reduce_op="sum").cpu()  # type: ignore
    if isinstance(model, ImageClassifier) and labels is not None:
        return Accuracy(values, labels)
    (mean, mistakes), bits = values.mean(0).tolist(), values[:, 0]
    nats = mean * math.prod(model.shape) * math.log(2)
    error = float(bits.std()) / math.sqrt(len(data)) if len(data) > 1 else math.inf
    label_error = mistakes if classify else None
    return Evaluation(mean, error, nats, len(data), draws, seed, bound, label_error)
