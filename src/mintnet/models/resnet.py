"""The ResNet of the same shape, to compare the invertible classifier with."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.models.base import Config, Counts, Sizes, choose
from mintnet.models.classifier import LABELLED, PIXELS, ImageClassifier, Pixels
from mintnet.models.fast import compiled_if


@dataclass(frozen=True)
class ResNetConfig(Config):
    """Residual blocks of each stage and their filters; later stages halve height and width."""

    blocks: Counts = (12, 12, 14)
    widths: Sizes = (16, 64, 256)

    def check_more(self) -> None:
        self.check_stages("blocks", "widths")

    def least_weights(self) -> int:
        return sum(18 * n * width**2 for n, width in zip(self.blocks, self.widths, strict=True))


class PreActivationBlock(nn.Module):
    """x + three times (batch normalization, ReLU, 3 × 3 convolution) of x, by He et al., 2016."""

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        inputs = (channels, width, width)
        self.norms = nn.ModuleList(nn.BatchNorm2d(count) for count in inputs)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(count, width, 3, stride if k == 0 else 1, padding=1, bias=False)
            for k, count in enumerate(inputs)
        )
        changes = stride != 1 or channels != width  # then a shortcut of the first activation
        self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        u, skip = x, x
        for k, (norm, conv) in enumerate(zip(self.norms, self.convolutions, strict=True)):
            u = F.relu(norm(u))
            if k == 0 and self.shortcut is not None:
                skip = _convolved(self.shortcut, u, dtype).to(x.dtype)
            u = _convolved(conv, u, dtype)
        return skip + u.to(x.dtype)


class ResNet(ImageClassifier):
    """A convolution, 38 pre-activation blocks in three stages, global average pooling, linear.

    Examples:
        >>> net = ResNet(ResNetConfig((1, 1), (4, 8)), Pixels((5, 8, 8))).eval()
        >>> net(torch.randn(3, 5, 8, 8)).exp().sum(1).round().tolist()
        [1.0, 1.0, 1.0]
    """

    kind = "resnet"
    config: ResNetConfig
    schema: ClassVar[Any] = {"net": ResNetConfig, **LABELLED}

    def __init__(self, config: ResNetConfig, pixels: Pixels, classes: int = 10) -> None:
        super().__init__(config, pixels, classes)
        width = config.widths[0]
        self.first = nn.Conv2d(pixels.shape[0], width, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList()
        for stage, (count, after) in enumerate(zip(config.blocks, config.widths, strict=True)):
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                self.blocks.append(PreActivationBlock(width, after, stride))
                width = after
        self.norm = nn.BatchNorm2d(width)
        self.linear = nn.Linear(width, classes)  # all start as PyTorch's own: Kaiming, a = √5

    @staticmethod
    def preset(name: str) -> "ResNet":
        """The paper's ResNet for mnist or cifar10, with fresh weights."""
        known = {name: PIXELS[name] for name in ("mnist", "cifar10")}
        return ResNet(ResNetConfig(), known[choose(name, known, "-resnet")])

    def logits(self, x: Tensor, dtype: torch.dtype | None = None, compiled: bool = False) -> Tensor:
        x = _convolved(self.first, x, dtype).to(x.dtype)
        forward = compiled_if(compiled, PreActivationBlock.forward)
        for block in self.blocks:
            x = forward(block, x, dtype)
        return self.linear(F.relu(self.norm(x)).mean((2, 3)))  # type: ignore[no-any-return]


def _convolved(convolution: Any, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A convolution without bias, in another precision and channels-last where one is given."""
    weight = convolution.weight
    if dtype is not None:
        x = x.to(dtype).contiguous(memory_format=torch.channels_last)
        weight = weight.to(dtype).contiguous(memory_format=torch.channels_last)
    return convolution._conv_forward(x, weight, None)  # type: ignore[no-any-return]
