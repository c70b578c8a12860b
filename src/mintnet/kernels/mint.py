"""A fast path for training on a GPU: Mint layers in bf16, aligned and compiled.

It computes what `MintLayer.transform` computes, with these differences in how:

- the weights of all layers of one shape and ordering are masked, constrained, padded and
  converted together (`prepared`): one layer's weights are too small to be worth a launch;
- activations are channels-last, and the hidden width is padded with dead channels to a multiple
  of 64, which the matrix units want (of 16 on a CPU);
- the first and the last convolution, with few channels on one side, are matrix products: taps are
  gathered before the one and scattered after the other, which convolution libraries do badly;
- of a single channel only the taps that the mask leaves are computed;
- convolutions and slope mixing run in ``dtype`` (bf16), while t·x, the sums of slopes, their
  logarithm and the log-determinant stay in float32;
- slopes are mixed by one matrix product with a block-diagonal matrix;
- both functions are compiled, once for each stage, and what is cheap is computed again in the
  backward pass: of a layer, three hidden tensors are kept instead of seven.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch._functorch.config
from torch import Tensor
from torch.nn import functional as F

ALIGNMENT = {"cpu": 16}
"""What hidden widths are padded to a multiple of, where that is not 64."""
GATHERED = 16
"""The most channels for which the first and last convolution are matrix products."""


class Prepared(NamedTuple):
    """Weights of L layers, or of one, as the fast path wants them.

    Shapes, for one layer: first (T·C, width) or (width, C, R, R); second (width, width, R', R'');
    third (width, T·C) or (C, width, R, R); product (width, width); bias1, bias2 (width,);
    bias3 (C,); t (C, H, W). Width is padded.
    """

    first: Tensor
    second: Tensor
    third: Tensor
    bias1: Tensor
    bias2: Tensor
    bias3: Tensor
    product: Tensor
    t: Tensor

    def unbind(self) -> list[Prepared]:
        """One for each layer."""
        return [Prepared(*parts) for parts in zip(*(part.unbind(0) for part in self), strict=True)]


def prepared(
    weights: Sequence[Sequence[Tensor]],
    biases: Sequence[Sequence[Tensor]],
    t: Sequence[Tensor],
    masks: Sequence[Tensor],
    upper: bool,
    dtype: torch.dtype,
) -> Prepared:
    """The weights of L layers of one shape, masked and with the signs of Eq. 4, laid out.

    Args:
        weights: W¹, W² and W³ of each layer.
        biases: b¹, b² and b³ of each layer.
        t: of each layer.
        masks: of W¹, W² and W³, the same for all layers.
        upper: the ordering of the layers.
        dtype: of what is multiplied.
    """
    w1, w2, w3 = (torch.stack(list(w)) * mask for w, mask in zip(weights, masks, strict=True))
    b1, b2, b3 = (torch.stack(list(bias)) for bias in biases)
    channels, width, size = w3.shape[1], w2.shape[1], w2.shape[-1]
    dead, radius = -width % ALIGNMENT.get(w2.device.type, 64), size // 2
    group = torch.arange(width, device=w2.device) // (width // channels)
    same = group[:, None] == group[None, :]
    # Eq. 4: only centre taps between copies of one channel change, and of those the sign.
    own1 = _own(w1[..., radius, radius].mT)
    own3 = _own(w3[..., radius, radius])
    sign = own3.sign()[:, :, None] * own1.sign()[:, None, :]
    centre = torch.arange(size * size, device=w2.device) == size * size // 2
    constrained = same[:, :, None, None] & centre.view(size, size)
    w2 = torch.where(constrained, w2.abs() * sign[..., None, None], w2)
    # diag(W³ᵢ) diag(W²ᵢⱼ) diag(W¹ⱼ) as one block-diagonal matrix, 0 between channels.
    product = own3[:, :, None] * w2[..., radius, radius] * own1[:, None, :]
    product = F.pad(torch.where(same, product, 0.0), (0, dead, 0, dead)).to(dtype)
    seen = seen_taps(channels, size, upper)
    taps = slice(seen[0], seen[-1] + 1)
    if channels == 1:  # what the mask leaves lies in a rectangle of rows up to the centre
        w2 = w2[..., radius:, :] if upper else w2[..., : radius + 1, :]
    second = F.pad(w2, (0, 0, 0, 0, 0, dead, 0, dead)).to(dtype)
    second = second.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    if channels <= GATHERED:
        first = F.pad(w1.flatten(3)[..., taps], (0, 0, 0, 0, 0, dead))  # (L, width, C, T)
        first = first.permute(0, 3, 2, 1).flatten(1, 2).to(dtype)
        third = F.pad(w3.flatten(3)[..., taps], (0, 0, 0, dead))  # (L, C, width, T)
        third = third.permute(0, 2, 3, 1).flatten(2).to(dtype)
    else:
        first = F.pad(w1, (0, 0, 0, 0, 0, 0, 0, dead)).to(dtype)
        third = F.pad(w3, (0, 0, 0, 0, 0, dead)).to(dtype)
        first, third = (
            w.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3) for w in (first, third)
        )
    b1, b2 = (F.pad(bias, (0, dead)).to(dtype) for bias in (b1, b2))
    return Prepared(first, second, third, b1, b2, b3, product, torch.stack(list(t)))


def prepared_layers(
    layers: Sequence[Any], dtype: torch.dtype, prepare: Callable[..., Prepared] = prepared
) -> list[Prepared]:
    """`prepared` for Mint layers of one shape and ordering, one for each.

    Args:
        layers: Mint layers.
        dtype: of what is multiplied.
        prepare: `prepared`, or what the compiler made of it.
    """
    first = layers[0]
    together = prepare(
        [[getattr(layer, f"weight{i}") for layer in layers] for i in (1, 2, 3)],
        [[getattr(layer, f"bias{i}") for layer in layers] for i in (1, 2, 3)],
        [layer.t for layer in layers],
        (first.mask1, first.mask2, first.mask3),
        first.ordering.upper,
        dtype,
    )
    return together.unbind()


def mint_layer(
    x: Tensor, weights: Prepared, filters: int, size: int, upper: bool
) -> tuple[Tensor, Tensor]:
    """Eq. 2 for ELU and the logarithm of the diagonal of its Jacobian, summed.

    Shapes: x (batch, C, H, W), K = ``filters``, kernels ``size`` × ``size``; → (batch, C, H, W),
    (batch,).
    """
    first, second, third, b1, b2, b3, product, t = weights
    channels, radius, dtype = x.shape[1], size // 2, second.dtype
    taps = seen_taps(channels, size, upper)
    x = x.contiguous(memory_format=torch.channels_last)
    if channels <= GATHERED:
        seen = gather_taps(x.permute(0, 2, 3, 1).to(dtype), taps, size)
        v1 = (seen @ first + b1).permute(0, 3, 1, 2)
    else:
        v1 = F.conv2d(x.to(dtype), first, b1, padding=radius)
    h1 = F.elu(v1)
    if channels == 1:
        h1 = F.pad(h1, (0, 0, 0, radius) if upper else (0, 0, radius, 0))
        v2 = F.conv2d(h1, second, b2, padding=(0, radius))
    else:
        v2 = F.conv2d(h1, second, b2, padding=radius)
    h2 = F.elu(v2)
    if channels <= GATHERED:
        parts = (h2.permute(0, 2, 3, 1) @ third).unflatten(-1, (len(taps), channels))
        sums = scatter_taps(parts, taps, size)
    else:
        sums = F.conv2d(h2, third, padding=radius).permute(0, 2, 3, 1)
    d1, d2 = v1.clamp(max=0).exp(), v2.clamp(max=0).exp()
    mixed = d1.permute(0, 2, 3, 1) @ product.mT
    terms = d2.permute(0, 2, 3, 1).float() * mixed.float()
    copies = terms[..., : channels * filters].unflatten(-1, (channels, filters))
    return closing(x, sums, copies.sum(-1), t, b3)


def closing(x: Tensor, sums: Tensor, slope: Tensor, t: Tensor, b3: Tensor) -> tuple[Tensor, Tensor]:
    """t ⊙ x + sums + b³, and Σ log(t + slope): what is left when the hidden layers are done.

    Shapes: x (batch, C, H, W); sums and slope (batch, H, W, C); → (batch, C, H, W), (batch,).
    """
    y = t * x + sums.permute(0, 3, 1, 2) + b3[:, None, None]
    log_det = (t.permute(1, 2, 0) + slope).log().flatten(1).sum(1)
    return y, log_det


def seen_taps(channels: int, size: int, upper: bool) -> list[int]:
    """The taps of a kernel, row by row, that the mask leaves to some pair of channels.

    Examples:
        >>> seen_taps(1, 3, upper=False)
        [0, 1, 2, 3, 4]
    """
    taps = range(size * size)
    if channels > 1:
        return list(taps)
    return [tap for tap in taps if (tap >= size * size // 2 if upper else tap <= size * size // 2)]


def gather_taps(x: Tensor, taps: Sequence[int], size: int) -> Tensor:
    """What a kernel sees at each place: (B, H, W, C) → (B, H, W, T·C), with zeros around."""
    return torch.stack(_shifted(x, taps, size), 3).flatten(3)


def scatter_taps(parts: Tensor, taps: Sequence[int], size: int) -> Tensor:
    """Contributions of each tap, brought to where they belong and summed in float32.

    Shapes: (B, H, W, T, C) → (B, H, W, C).
    """
    columns = [part.float() for part in parts.unbind(3)]
    brought = [_shifted(part, [tap], size)[0] for part, tap in zip(columns, taps, strict=True)]
    return torch.stack(brought).sum(0)


def _shifted(x: Tensor, taps: Sequence[int], size: int) -> list[Tensor]:
    """x as seen through each tap, (B, H, W, C) each."""
    height, width, radius = x.shape[1], x.shape[2], size // 2
    padded = F.pad(x, (0, 0, radius, radius, radius, radius))
    places = [divmod(tap, size) for tap in taps]
    return [padded[:, r : r + height, q : q + width] for r, q in places]


def _own(matrix: Tensor) -> Tensor:
    """The entries of (L, C, C·K) matrices that join a channel with its own copies, (L, C·K)."""
    channels, width = matrix.shape[-2:]
    group = torch.arange(width, device=matrix.device) // (width // channels)
    return matrix.gather(-2, group.expand(len(matrix), 1, width)).flatten(1)


KEPT = 0.5
"""The share of what a backward pass wants that is kept for it; the rest is computed again.

At one half a layer keeps v¹, v² and the mixed slopes, and computes what follows from them element
by element: less than half of the memory, and less to write and to read.
"""
_COMPILED: dict[str, Callable[..., Any]] = {}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this module compiled, made when it is first wanted."""
    if function.__name__ not in _COMPILED:
        torch._dynamo.config.cache_size_limit = 64
        made = torch.compile(function, dynamic=False)

        @functools.wraps(function)
        def with_little_kept(*args: Any) -> Any:
            with torch._functorch.config.patch(activation_memory_budget=KEPT):
                return made(*args)

        _COMPILED[function.__name__] = with_little_kept
    return _COMPILED[function.__name__]
