"""What a step has to do at least, and what the machine could do at most."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mintnet.bench.machine import seconds, timings
from mintnet.bijections import MintLayer
from mintnet.flows import RealNVPCoupling
from mintnet.models import MintNet

PASSES = 5
"""Times that an activation passes through memory in a step of training: it is written and read,
read again by the backward pass, and its gradient is written and read."""

OPTIMIZER_PASSES = 10
"""Times that a weight does: weight, gradient and the three moments of AMSGrad, read and written."""


def unmasked_flops(net: MintNet) -> int:
    """Multiplications and additions of a step of training for one image that no mask clears.

    2 · H · W for each weight that is not masked, and three times that: forward, and the gradients
    of inputs and of weights; couplings too. Slopes and element-wise work are not counted.

    Examples:
        >>> from mintnet.models import MintNetConfig
        >>> unmasked_flops(MintNet(MintNetConfig((1, 4, 4), pairs=(1,), filters=(2,))))
        7680
    """
    total = sum(3 * evaluation_flops(layer) for layer in net.layers())
    for kernels, (height, width) in _couplings(net):
        total += 3 * 2 * height * width * sum(kernel.numel() for kernel in kernels)
    return total


def _couplings(net: MintNet) -> Iterator[tuple[list[Tensor], tuple[int, int]]]:
    """The kernels of each coupling, and (H, W)."""
    for part in net.chain.leaves():
        if isinstance(part, RealNVPCoupling):
            kernels: list[Tensor] = [w for w in part.parameters() if w.dim() == 4]
            yield kernels, (part.event_shape[1], part.event_shape[2])


def evaluation_flops(layer: MintLayer) -> int:
    """Multiplications and additions of one evaluation of a layer that no mask clears.

    Examples:
        >>> evaluation_flops(MintLayer(1, 2, (4, 4)))
        1280
    """
    _, height, width = layer.event_shape
    weights = sum(int(mask.sum()) for mask in (layer.mask1, layer.mask2, layer.mask3))
    return 2 * height * width * weights


def evaluation_traffic(layer: MintLayer) -> int:
    """Bytes that one evaluation in float32 moves at least for an image, if nothing stays on chip.

    Both hidden layers and their slopes are written and read, the input is read, and the output and
    its slope are written. Weights are left out: a batch reads them once.

    Examples:
        >>> evaluation_traffic(MintLayer(1, 2, (4, 4)))  # 16 pixels, 2 · 2 · 2 · 2 + 3 numbers
        1216
    """
    c, height, width = layer.event_shape
    return 4 * height * width * c * (8 * layer.filters + 3)


def least_traffic(net: MintNet, batch: int, size: int) -> int:
    """Bytes that a step moves at least if layers keep nothing on chip.

    The two hidden layers and the output of each Mint layer, what each convolution of a coupling
    gives, with ``size`` bytes a number, and weights with their moments in float32.
    """
    numbers = 0
    for layer in net.layers():
        c, height, width = layer.event_shape
        numbers += height * width * c * (2 * layer.filters + 1)
    for kernels, (height, width) in _couplings(net):
        numbers += height * width * sum(len(kernel) for kernel in kernels)
    weights = sum(parameter.numel() for parameter in net.parameters())
    return PASSES * batch * numbers * size + OPTIMIZER_PASSES * 4 * weights


@torch.no_grad()
def matrix_ceiling(device: torch.device, dtype: torch.dtype, repeats: int = 10) -> float:
    """Operations a second of a large matrix product, the best of a few.

    Whether float32 means TF32 is as it is set when this is called.
    """
    n = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    a @ b
    best = min(timings({"": lambda: a @ b}, device, repeats)[""])
    return 2 * n**3 / best


@torch.no_grad()
def copy_ceiling(device: torch.device, repeats: int = 10) -> float:
    """Bytes a second that a large copy reads and writes, the median of a few."""
    size = 2**30 if device.type == "cuda" else 2**27
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * size / seconds(lambda: target.copy_(source), device, repeats)
