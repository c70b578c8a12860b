"""Evaluation on one or many devices: each process has its part of the images."""

from __future__ import annotations

from lightning.pytorch import LightningModule
from torch import Tensor, arange, device, float64, nn, zeros

from mintnet.models.flow import Flow
from mintnet.models.labelled import ImageClassifier
from mintnet.training.order import Batches, part_of


class _Evaluation(LightningModule):
    """Goes through all images, each process through its own part.

    Args:
        model: to be evaluated.
        images: (N, C, H, W), uint8.
        batch_size: images at a time.
    """

    def __init__(self, model: nn.Module, images: Tensor, batch_size: int) -> None:
        super().__init__()
        self.model, self.images, self.batch_size = model, images, batch_size

    def test_dataloader(self) -> Batches:
        places = arange(len(self.images))
        own = part_of(places, self.trainer.global_rank, self.trainer.world_size)
        return Batches([part for part in own.split(self.batch_size) if len(part)])

    def transfer_batch_to_device(self, batch: Tensor, to: device, _: int) -> Tensor:
        return batch  # places are looked up where the images are

    def _summed(self, values: Tensor) -> Tensor:
        """Values of all processes, each of which has filled in its own rows."""
        if self.trainer.world_size == 1:
            return values
        summed: Tensor = self.trainer.strategy.reduce(values.to(self.device), reduce_op="sum")
        return summed.cpu()


class EvaluationModule(_Evaluation):
    """Works out the bits per dimension of every image.

    Args:
        flow: the model.
        images: (N, C, H, W), uint8.
        draws: of noise for each image.
        seed: of the noise.
        batch_size: images at a time.
    """

    def __init__(self, flow: Flow, images: Tensor, draws: int, seed: int, batch_size: int) -> None:
        super().__init__(flow, images, batch_size)
        self.flow, self.draws, self.seed = flow, draws, seed
        self.bits = zeros(len(images), dtype=float64)
        """The mean over draws for each image, (N,), the same in every process at the end."""

    def test_step(self, places: Tensor, _: int) -> None:
        images, index = self.images[places].to(self.device), places.to(self.device)
        for draw in range(self.draws):
            bits = self.flow.bits_per_dim(images, self.seed, draw, index)
            self.bits[places] += bits.double().cpu() / self.draws

    def on_test_epoch_end(self) -> None:
        self.bits = self._summed(self.bits)


class ClassifierEvaluation(_Evaluation):
    """Works out the log-probabilities of every image.

    Args:
        classifier: the model.
        images: (N, C, H, W), uint8.
        batch_size: images at a time.
    """

    def __init__(self, classifier: ImageClassifier, images: Tensor, batch_size: int) -> None:
        super().__init__(classifier, images, batch_size)
        self.classifier = classifier
        self.log_probs = zeros(len(images), classifier.classes, dtype=float64)
        """(N, classes), the same in every process at the end."""

    def test_step(self, places: Tensor, _: int) -> None:
        found = self.classifier(self.images[places].to(self.device))
        self.log_probs[places] = found.double().cpu()

    def on_test_epoch_end(self) -> None:
        self.log_probs = self._summed(self.log_probs)
