"""Masked convolutions in the pixel order, inverted front by front: forward substitution."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mintnet.calculus.expression import Expression, Operation
from mintnet.calculus.linear import Convolution
from mintnet.solvers.schedule import front_of


def as_substitution(root: Expression) -> Convolution | None:
    """The convolution of a function that is one masked convolution in the pixel order."""
    linear = root.linear
    if root.operation is not Operation.LINEAR or not isinstance(linear, Convolution):
        return None
    square = linear.weight.shape[0] == linear.weight.shape[1] == linear.groups
    single = root.sources[0].operation is Operation.INPUT
    return linear if square and single and linear.ordering.name == "pixel" else None


def substitute(linear: Convolution, z: Tensor) -> tuple[Tensor, int]:
    r"""x with W ⊛ x + b = z, and the number of fronts.

    A pixel depends on all channels of the pixels above and to the left that its kernel reaches,
    so that the pixels with the same (ρ+1) r + q form a front. On each, one triangular C × C
    system is left at every pixel: the centre of the kernel. It is solved exactly.

    Shapes: z and x (batch, C, H, W).

    Examples:
        >>> from mintnet.calculus import Ordering
        >>> weight = torch.zeros(1, 1, 3, 3)
        >>> weight[0, 0, 1, :2] = torch.tensor([1.0, 2.0])   # y[q] = x[q − 1] + 2 x[q]
        >>> conv = Convolution(weight, None, 1, Ordering(name="pixel"))
        >>> substitute(conv, torch.tensor([[[[2.0, 3.0, 5.0]]]]))
        (tensor([[[[1., 1., 2.]]]]), 3)
    """
    weight = linear.weight
    if linear.bias is not None:
        z = z - linear.bias[:, None, None]
    if linear.ordering.upper:  # the mirror image of a lower one
        weight, z = weight.flip(0, 1, 2, 3), z.flip(1, 2, 3)
    channels, radius = weight.shape[0], weight.shape[-1] // 2
    batch, _, height, width = z.shape
    centre = weight[:, :, radius, radius]
    taps = weight.shape[-1] ** 2 // 2  # those before the centre
    earlier = weight.flatten(2)[:, :, :taps].transpose(1, 2).reshape(channels, -1)
    target = z.permute(2, 3, 1, 0).reshape(height * width, channels, batch)
    fronts, seen, padded = _fronts((height, width), radius, z.device)
    x = z.new_zeros((height + radius) * (width + 2 * radius), channels, batch)
    for places, rows, own in zip(fronts, seen, padded, strict=True):
        known = earlier @ x[rows].reshape(len(places), taps * channels, batch)
        x[own] = torch.linalg.solve_triangular(centre, target[places] - known, upper=False)
    found = x.reshape(height + radius, -1, channels, batch)
    found = found[radius:, radius : radius + width].permute(3, 2, 0, 1)
    return found.flip(1, 2, 3) if linear.ordering.upper else found.contiguous(), len(fronts)


@lru_cache(maxsize=32)
def _fronts(
    size: tuple[int, int], radius: int, device: torch.device
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """For each front its pixels, the padded pixels that their kernels see, and their own."""
    front = front_of(size, radius).flatten()
    order = torch.sort(front, stable=True).indices.split(torch.bincount(front).tolist())
    width, side = size[1] + 2 * radius, 2 * radius + 1
    tap = torch.arange(side * side // 2)
    shift = (tap // side - radius) * width + tap % side - radius
    fronts, seen, padded = [], [], []
    for places in order:
        if len(places):
            own = (places // size[1] + radius) * width + places % size[1] + radius
            fronts.append(places.to(device))
            seen.append((own[:, None] + shift).to(device))
            padded.append(own.to(device))
    return fronts, seen, padded
