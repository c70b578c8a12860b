"""Statistics of pictures under a density model, from which `score` tells how odd they are."""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.bijections import Bijection
from mintnet.models import Flow
from mintnet.models.batches import Progress
from mintnet.precision import true_float32

STATISTICS = {
    "bits": "bits per dimension",
    "excess": "bits beyond what a compressor needs",
    "variance": "variance of the code",
    "tails": "tails of the code",
    "rows": "correlation of the code along rows",
    "columns": "correlation of the code along columns",
    "channels": "correlation of the code between channels",
}
FARTHEST = 38.0  # beyond it the density of a standard normal is 0 in double precision


@torch.no_grad()
def measure(
    flow: Flow,
    images: Tensor,
    draws: int = 1,
    index: Tensor | None = None,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`STATISTICS` (batch, 7), − log p in nats (batch,) and its map (batch, H, W), of uint8 images.

    All are float64 on the CPU, and means over dequantization draws. The map is None if the model
    is not triangular.
    """
    if draws < 1:
        raise ValueError(f"at least one draw is needed; got {draws}")
    flow.check_images(images, floating=False)
    if not len(images):
        raise ValueError("expected at least one image; got none")
    places, size = torch.arange(len(images)) if index is None else index, flow.batch_size
    found: list[tuple[Tensor, ...]] = []
    for some, where in zip(images.split(size), places.split(size), strict=True):
        inputs = some.to(flow.device), where.to(flow.device)
        each = [_of_draw(flow, *inputs, draw) for draw in range(draws)]
        means = (torch.stack(parts).mean(0).cpu() for parts in zip(*each, strict=True))
        found.append((*means, torch.tensor([compressed_bits(image) for image in some.cpu()])))
        if progress is not None:
            progress(sum(len(part[0]) for part in found), len(images))
    nats, code, maps, needed = (torch.cat(parts) for parts in zip(*found, strict=True))
    bits = nats / math.log(2)
    compared = torch.stack([bits, bits - needed], 1) / flow.dimensions
    return torch.cat([compared, code], 1), nats, maps if maps.numel() else None


def _of_draw(flow: Flow, images: Tensor, index: Tensor, draw: int) -> tuple[Tensor, ...]:
    """Nats, statistics of the code and the map for one dequantization draw.

    A class-conditional model shows the map of the likeliest class; what the others add to the
    likelihood is spread evenly over it.
    """
    x = flow.dequantize(images, 0, draw, index)
    labels = range(flow.classes) if flow.classes else [None]
    each = [_of_label(flow, x, flow.context(label, len(x))) for label in labels]
    every, codes, maps = (torch.stack(parts) for parts in zip(*each, strict=True))
    best = every.argmin(0), torch.arange(len(x), device=x.device)
    nats = math.log(len(labels)) - (-every).logsumexp(0)
    rest = (nats - every[best]) / math.prod(flow.shape[1:])
    return nats, codes[best], maps[best] + rest[:, None, None]


def _of_label(flow: Flow, x: Tensor, context: Tensor | None) -> tuple[Tensor, ...]:
    net = flow.given(context)
    with true_float32():
        if has_map(net):
            y, slopes_of_pixels = flow.pixels.log_slopes(x)
            z, slopes = net.log_slopes(y)
            density = flow.base.log_prob(net.to_input_order(z).double())
            maps = -(density + slopes + slopes_of_pixels - math.log(flow.levels)).sum(1)
            nats = maps.sum((1, 2))
        else:
            z = net.value(flow.pixels.value(x))
            nats = -flow.log_density(x, context=context).double()
            maps = nats.new_empty(len(x), 0, 0)
    code = flow.base.to_normal(net.to_input_order(z).double())
    return nats, of_code(code.clamp(-FARTHEST, FARTHEST)), maps


def has_map(net: Bijection) -> bool:
    """Whether log p is a sum over pixels: all parts of the network are triangular or permute."""
    return all(type(leaf).log_slopes is not Bijection.log_slopes for leaf in net.leaves())


def of_code(u: Tensor) -> Tensor:
    """Statistics of codes (batch, C, H, W), which are white noise under the model: (batch, 5).

    log E u², E |u| / √E u², and the correlation of neighbours E uv / E u² along rows, along
    columns and between channels.
    """
    square = u.square().flatten(1).mean(1).clamp(min=1e-12)
    products = u[..., 1:] * u[..., :-1], u[:, :, 1:] * u[:, :, :-1], u[:, 1:] * u[:, :-1]
    related = [product.flatten(1).sum(1) / (u[0].numel() * square) for product in products]
    return torch.stack([square.log(), u.abs().flatten(1).mean(1) / square.sqrt(), *related], 1)


def compressed_bits(image: Tensor) -> float:
    """Bits that zlib needs for a picture (C, H, W) with the best of four differences of bytes."""
    pixels, zero = image.numpy(), np.uint8(0)
    left, up = (np.diff(pixels, axis=axis, prepend=zero) for axis in (2, 1))
    both = np.diff(left, axis=1, prepend=zero)
    return 8.0 * min(len(zlib.compress(x.tobytes(), 9)) for x in (pixels, left, up, both))


def texture(images: Tensor) -> Tensor:
    """log (1 + standard deviation in 3 × 3 pixels), mean of channels: (batch, H, W)."""
    x = images.double()
    padded = F.pad(torch.cat([x, x * x]), (1, 1, 1, 1), mode="replicate")
    mean, square = F.avg_pool2d(padded, 3, 1).chunk(2)
    return (square - mean * mean).clamp(min=0).sqrt().mean(1).log1p()
