"""Evaluation on one or many devices: each process has its part of the images."""

from __future__ import annotations

from lightning.pytorch import LightningModule
from torch import Tensor, arange, device, float64, zeros

from mintnet.models.flow import Flow
from mintnet.training.order import Batches, part_of


class EvaluationModule(LightningModule):
    """Works out the bits per dimension of every image.

    Args:
        flow: the model.
        images: (N, C, H, W), uint8.
        draws: of noise for each image.
        seed: of the noise.
        batch_size: images at a time.
    """

    def __init__(self, flow: Flow, images: Tensor, draws: int, seed: int, batch_size: int) -> None:
        super().__init__()
        self.flow, self.images = flow, images
        self.draws, self.seed, self.batch_size = draws, seed, batch_size
        self.bits = zeros(len(images), dtype=float64)
        """The mean over draws for each image, (N,), the same in every process at the end."""

    def test_dataloader(self) -> Batches:
        places = arange(len(self.images))
        own = part_of(places, self.trainer.global_rank, self.trainer.world_size)
        return Batches([part for part in own.split(self.batch_size) if len(part)])

    def transfer_batch_to_device(self, batch: Tensor, to: device, _: int) -> Tensor:
        return batch  # places are looked up where the images are

    def test_step(self, places: Tensor, _: int) -> None:
        images, index = self.images[places].to(self.device), places.to(self.device)
        for draw in range(self.draws):
            bits = self.flow.bits_per_dim(images, self.seed, draw, index)
            self.bits[places] += bits.double().cpu() / self.draws

    def on_test_epoch_end(self) -> None:
        if self.trainer.world_size > 1:
            mine = self.bits.to(self.device)
            self.bits = self.trainer.strategy.reduce(mine, reduce_op="sum").cpu()
