"""Triangular linear maps: the basic module of the calculus."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.calculus.masks import conv_mask, dense_mask
from mintnet.calculus.ordering import Ordering
from mintnet.calculus.quantity import Function, Q


@dataclass(frozen=True)
class LinearMap(ABC):
    """v ↦ W v + b with a triangular W, its mask applied already.

    ``groups`` is the number of channels (or features) of the input of the whole function. The bias
    has one entry for each output channel, (G · out,), or one for each place, (G · out, H, W).
    """

    weight: Tensor
    bias: Tensor | None
    groups: int
    ordering: Ordering

    @abstractmethod
    def apply(self, data: Tensor, weight: Tensor) -> Tensor:
        """The map with another weight of the same shape, and without the bias."""

    def __call__(self, data: Tensor) -> Tensor:
        image, bias = self.apply(data, self.weight), self.bias_for(data)
        return image if bias is None else image + bias.to(data.dtype)

    def bias_for(self, data: Tensor) -> Tensor | None:
        """The bias in a shape that broadcasts to images of ``data``."""
        if self.bias is None:
            return None
        return self.bias[(..., *(None,) * (data.dim() - 1 - self.bias.dim()))]

    @abstractmethod
    def mask(self) -> Tensor:
        """Where a triangular map may have weights, of the shape of the weight."""

    def diagonal(self) -> Tensor:
        """The weights between copies of the same coordinate, (groups, copies_out, copies_in)."""
        radius = self.weight.shape[-1] // 2
        same_place = self.weight[:, :, radius, radius] if self.weight.dim() == 4 else self.weight
        return blocks_of(same_place, self.groups)


def blocks_of(matrix: Tensor, groups: int) -> Tensor:
    """The diagonal blocks of a (groups * out, groups * in) matrix, (groups, out, in)."""
    rows, columns = matrix.shape[0] // groups, matrix.shape[1] // groups
    return matrix.reshape(groups, rows, groups, columns).diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def constrained(w2: Tensor, w1: Tensor, w3: Tensor, channels: int, mask: Tensor) -> Tensor:
    """V² (Eq. 4): W² with diag(V²ᵢⱼ) given the sign of diag(W³ᵢ) diag(W¹ⱼ), other taps untouched.

    |w| s = w · (sign(w) s), and signs have no gradient: so mask and constraint are one factor of
    W², and one product forward and one backward are all that they cost. W¹ and W³ are masked.

    Shapes: w1 (C·K, C, R, R), w2 (C·K, C·K, R, R), w3 (C, C·K, R, R).
    """
    r = w2.shape[-1] // 2
    with torch.no_grad():  # diag(W¹ⱼ) and diag(W³ᵢ), one for each hidden channel
        own1, own3 = (blocks_of(w[:, :, r, r], channels).reshape(-1).sign() for w in (w1, w3))
        signs = w2[:, :, r, r].sign() * own3[:, None] * own1[None, :]
        group = torch.arange(len(own1), device=w2.device) // (len(own1) // channels)
        centre = torch.arange(w2[0, 0].numel(), device=w2.device) == w2[0, 0].numel() // 2
        changed = (group[:, None] == group[None, :])[:, :, None, None] & centre.view_as(w2[0, 0])
        factor = torch.where(changed, signs[:, :, None, None], mask.to(w2.dtype))
    return w2 * factor


@dataclass(frozen=True)
class Convolution(LinearMap):
    """A masked convolution with its weights given: (G * out, G * in, R, R), stride 1, padded."""

    def apply(self, data: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(data, weight.to(data.dtype), padding=weight.shape[-1] // 2)

    def mask(self) -> Tensor:
        out, into, size, width = self.weight.shape
        if size != width:
            raise ValueError(f"masked kernels are square; got one of {size}×{width}")
        copies = out // self.groups, into // self.groups
        return conv_mask(self.groups, *copies, size, self.ordering.upper, self.ordering.name)

    def __str__(self) -> str:
        out, into, size, _ = self.weight.shape
        return f"the masked {size}×{size} convolution from {into} to {out} channels"


@dataclass(frozen=True)
class Dense(LinearMap):
    """A triangular matrix with its weights given: (G * out, G * in)."""

    def apply(self, data: Tensor, weight: Tensor) -> Tensor:
        return data @ weight.to(data.dtype).T

    def mask(self) -> Tensor:
        out, into = (size // self.groups for size in self.weight.shape)
        return dense_mask(self.groups, out, into, self.ordering.upper)

    def __str__(self) -> str:
        return f"the masked dense layer from {self.weight.shape[1]} to {self.weight.shape[0]}"


class _Masked(Function):
    """A masked linear map with weights to train; a subclass says which mask and which map."""

    mask: Tensor
    kind: ClassVar[type[LinearMap]]

    def __init__(self, mask: Tensor, groups: int, ordering: Ordering, bias: bool) -> None:
        super().__init__()
        self.groups, self.ordering = groups, ordering
        self.weight = nn.Parameter(torch.empty(mask.shape))
        self.bias = nn.Parameter(torch.empty(mask.shape[0])) if bias else None
        self.register_buffer("mask", mask, persistent=False)
        # The defaults of PyTorch's own layers.
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.weight[0].numel())
            nn.init.uniform_(self.bias, -bound, bound)

    def linear_map(self) -> LinearMap:
        return self.kind(self.weight * self.mask, self.bias, self.groups, self.ordering)

    def forward(self, x: Q) -> Q:
        return x.through(self.linear_map())


class MaskedConv2d(_Masked):
    r"""A masked convolution (App. B), the basic module for images: v ↦ (W ⊙ M) ⊛ v + b.

    Args:
        channels: C, the channels of the input of the whole function.
        copies_in: how many copies of each channel come in.
        copies_out: how many go out.
        kernel_size: R, odd.
        upper: see later entries instead of earlier ones.
        order: "raster" (Eq. 7), or "pixel" for all channels of a pixel before the next pixel.
        strict: see strictly earlier entries alone, so that every slope is exactly 0.

    Shapes: (batch, C * copies_in, H, W) → (batch, C * copies_out, H, W).

    Examples:
        >>> from mintnet.calculus import variable
        >>> conv = MaskedConv2d(3, copies_out=4)
        >>> conv(variable(torch.randn(1, 3, 8, 8))).data.shape
        torch.Size([1, 12, 8, 8])
    """

    kind = Convolution

    def __init__(
        self,
        channels: int,
        copies_in: int = 1,
        copies_out: int = 1,
        kernel_size: int = 3,
        upper: bool = False,
        bias: bool = True,
        order: str = "raster",
        strict: bool = False,
    ) -> None:
        mask = conv_mask(channels, copies_out, copies_in, kernel_size, upper, order, strict)
        super().__init__(mask, channels, Ordering(upper, order), bias)


class MaskedLinear(_Masked):
    r"""A triangular matrix, the basic module for vectors: v ↦ (W ⊙ M) v + b.

    With ``strict`` each entry sees strictly earlier ones alone, and every slope is exactly 0.

    Shapes: (batch, features * copies_in) → (batch, features * copies_out).

    Examples:
        >>> from mintnet.calculus import variable
        >>> layer = MaskedLinear(5)
        >>> y = layer(variable(torch.randn(2, 5)))
        >>> bool((y.slope == layer.weight.diagonal()).all())
        True
    """

    kind = Dense

    def __init__(
        self,
        features: int,
        copies_in: int = 1,
        copies_out: int = 1,
        upper: bool = False,
        bias: bool = True,
        strict: bool = False,
    ) -> None:
        mask = dense_mask(features, copies_out, copies_in, upper, strict)
        super().__init__(mask, features, Ordering(upper), bias)
