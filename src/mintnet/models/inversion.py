"""Features mapped back to images, with what is known about how well that went."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mintnet.solvers import REMEDY, Solution


class TrainingModeError(ValueError, RuntimeError):
    """An inverse was asked of a network in training mode, where it has none."""


@dataclass(frozen=True)
class Inversion:
    """The padded images that have given features.

    Attributes:
        solution: the certificate, layer by layer and end to end, for each sample; its value is
            the padded image.
        channels: how many of the channels are the image's own.
    """

    solution: Solution
    channels: int

    @property
    def images(self) -> Tensor:
        """What the classifier would have to be given, (batch, C, H, W), without the padding.

        Leaving out the padding is a projection: where `padding_energy` is not near 0 these images
        have other features than those that were asked for.
        """
        return self.solution.value[:, : self.channels]

    @property
    def padding(self) -> Tensor:
        """What landed in the padding, (batch, width − C, H, W)."""
        return self.solution.value[:, self.channels :]

    @property
    def padding_energy(self) -> Tensor:
        """The mean square of the padding of each sample, (batch,); 0 for features of an image."""
        if not self.padding.numel():
            return self.solution.value.new_zeros(len(self.solution.value))
        return self.padding.square().flatten(1).mean(1)

    @property
    def image_energy(self) -> Tensor:
        """The mean square of the image itself, to compare with, (batch,)."""
        return self.images.square().flatten(1).mean(1)

    def require(self) -> Tensor:
        """The images; raises `InversionError` unless every sample is certified."""
        self.solution.require(REMEDY)
        return self.images
