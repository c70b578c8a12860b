"""Deep networks of mixture layers."""

from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
from torch import Tensor

from mintnet.bijections import Bijection, Flip, MixtureLayer
from mintnet.graphs import is_capturing
from mintnet.models.base import Config, Counts, Shape, Sizes
from mintnet.models.mintnet import Network, in_stages

Labels = Tensor | int | None
Order = Literal["raster", "pixel"]


@dataclass(frozen=True)
class DeepConfig(Config):
    """The shape of a deep network: stages of mixture layers with 2 × 2 squeezes between them."""

    shape: Sizes  # (C, H, W) of one sample
    layers: Counts  # in each stage
    filters: Sizes  # K of each stage
    blocks: Counts  # residual blocks of each layer's network, by stage
    components: Sizes  # of the mixtures, by stage
    classes: Annotated[int, (0, 2**16)] = 0  # of labels, 0 for none
    order: Order = "raster"  # in which entries see each other

    def check_more(self) -> None:
        self.check_stages("layers", "filters", "blocks", "components")
        if len(self.shape) not in (1, 3):
            raise ValueError(f"shape: expected (C, H, W), or (D,) for vectors; got {self.shape}")
        if len(self.shape) == 1 and self.order != "raster":
            raise ValueError(f"order: expected raster, as for all vectors; got {self.order}")

    def least_weights(self) -> int:
        total, taps = 0, 9 if len(self.shape) == 3 else 1
        stages = zip(self.layers, self.filters, self.blocks, self.components, strict=True)
        for stage, (layers, filters, blocks, components) in enumerate(stages):
            channels = self.shape[0] * 4**stage
            width = channels * filters
            total += layers * width * (taps * width * blocks + channels * components)
        return total


DEEP_PRESETS: dict[str, DeepConfig] = {
    "digits-deep": DeepConfig((1, 8, 8), (2,), (16,), (2,), (8,), order="pixel"),
    "mnist-deep": DeepConfig((1, 28, 28), (2,), (96,), (5,), (10,), order="pixel"),
    "cifar10-deep": DeepConfig((3, 32, 32), (2,), (85,), (4,), (10,), order="pixel"),
    "imagenet32-deep": DeepConfig((3, 32, 32), (2,), (85,), (4,), (10,), order="pixel"),
}


class DeepNet(Network):
    """Mixture layers with squeezes between the stages.

    In the order of pixels each layer has the mirror image of what the one before gave: a layer of
    3 × 3 kernels sees nothing above a pixel that is farther to the right than up, and the next one
    does. In the raster order layers are alternately lower and upper. With ``levels`` the first
    layer takes dequantized pixels in [0, 1] with that many grey levels.
    """

    def __init__(self, config: DeepConfig, levels: int = 0) -> None:
        def layers(stage: int, shape: Shape) -> list[Bijection]:
            size = shape[0], config.filters[stage], shape[1:]
            depth = config.blocks[stage], config.components[stage]
            mirrored, found = config.order == "pixel", list[Bijection]()
            for index in range(config.layers[stage]):
                found += [Flip((-1,))] if index and mirrored else []
                upper, own = bool(index % 2) and not mirrored, levels if stage == index == 0 else 0
                given = config.classes, config.order
                found.append(MixtureLayer(*size, *depth, upper, *given, levels=own))
            return found

        shape = cast(Shape, config.shape)  # a vector has one stage, and no sides to halve
        super().__init__(*in_stages(shape, len(config.layers), layers))
        self.config = config

    def layers(self) -> list[MixtureLayer]:
        return [leaf for leaf in self.leaves() if isinstance(leaf, MixtureLayer)]

    @torch.no_grad()
    def initialize(self, x: Tensor, context: Tensor | None = None) -> None:
        """Layer after layer from images (batch, C, H, W), see `MixtureLayer.initialize`."""
        for leaf in self.leaves():
            if isinstance(leaf, MixtureLayer):
                leaf.initialize(x)
                leaf = leaf if context is None else leaf.given(context)
            x = leaf.value(x)


def one_hot(labels: Labels, count: int, classes: int) -> Tensor | None:
    """Labels, one for all, (count,) or by turns, as (count, classes); None without classes."""
    if not classes:
        if labels is not None:
            raise ValueError("this model has no classes, so that it takes no labels")
        return None
    found = torch.as_tensor(torch.arange(count) % classes if labels is None else labels)
    whole = not found.dtype.is_floating_point and found.dtype != torch.bool
    fits = whole and (found.dim() == 0 or (found.dim() == 1 and found.shape[0] == count))
    got = f"{found.dtype} {tuple(found.shape)}"
    if fits and not is_capturing(found):  # where values can be read
        outside = found[(found < 0) | (found >= classes)]
        fits, got = not len(outside), f"{outside[:1].tolist()}"
    if not fits:
        wanted = f"whole numbers from 0 to {classes - 1}, one or {count}"
        raise ValueError(f"labels: expected {wanted}; got {got}")
    return torch.nn.functional.one_hot(found.long().expand(count), classes)
