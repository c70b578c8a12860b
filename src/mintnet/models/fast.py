"""The fast path of training on a GPU: Mint layers in bf16, aligned and compiled.

It computes what `MintLayer` and `RealNVPCoupling` compute, with these differences in how:

- the weights of all layers of one shape and ordering are prepared together, in one launch;
- activations are channels-last; the hidden width is padded to a multiple of 64 (16 on a CPU);
- the first and the last convolution, with few channels on one side, are matrix products of
  gathered and scattered taps; of a single channel only the taps that the mask leaves;
- convolutions and slope mixing, a product with a block-diagonal matrix, run in ``dtype`` (bf16);
  t·x, the sums of slopes, their logarithm and the log-determinant stay in float32;
- functions are compiled, once for each shape.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.bijections import Bijection, MintLayer, MixtureLayer
from mintnet.flows import RealNVPCoupling
from mintnet.flows.couplings import HalfNetwork

Mapped = tuple[Tensor, Tensor]  # z and log |det J|
ALIGNMENT = {"cpu": 16}  # hidden widths are padded to a multiple of it, elsewhere of 64
GATHERED = 16  # the most channels for which the first and last convolution are matrix products


class Prepared(NamedTuple):
    """Weights of L layers, or of one, as the fast path needs them, with padded width."""

    first: Tensor  # (T·C, width) or (width, C, R, R)
    second: Tensor  # (width, width, R', R'')
    third: Tensor  # (width, T·C) or (C, width, R, R)
    bias1: Tensor
    bias2: Tensor
    bias3: Tensor
    product: Tensor  # (width, width)
    t: Tensor


def fast_transform(
    bijection: Bijection, x: Tensor, dtype: torch.dtype = torch.bfloat16, compiled: bool = True
) -> Mapped:
    """z and log |det J| of a chain of Mint layers with ELU, mixture layers, squeezes, couplings."""
    if reason := why_not_fast(bijection):
        raise ValueError(reason)
    leaves, total = bijection.leaves(), x.new_zeros(len(x))
    weights = _prepared_layers(leaves, dtype, compiled)
    for part in leaves:
        if isinstance(part, MintLayer):
            form = part.filters, part.kernel_size, part.ordering.upper
            x, log_det = compiled_if(compiled, mint_layer)(x, weights[part], *form)
        elif isinstance(part, RealNVPCoupling):
            x, log_det = compiled_if(compiled, coupling_layer)(x, part, dtype)
        elif isinstance(part, MixtureLayer):
            x = x.contiguous(memory_format=torch.channels_last)  # one layout is compiled
            x, log_det = compiled_if(compiled, mixture_layer)(x, part, part.given_context, dtype)
        else:
            x, log_det = part.transform(x)
        total = total + log_det
    return x, total


def mixture_layer(
    x: Tensor, layer: MixtureLayer, context: Tensor | None, dtype: torch.dtype
) -> Mapped:
    """A mixture layer: convolutions in ``dtype``, channels last; the mixtures in float32."""
    network, t_or_knots = layer.network, layer.t_or_knots
    at = layer.coordinates(x, t_or_knots)
    with torch.autocast(x.device.type, dtype, enabled=dtype != x.dtype):
        raw = network(at, context)
    prediction = network.prediction(at).flatten(2)
    mixture = layer.mixture(raw.to(x.dtype), prediction, network.reach, t_or_knots)
    value, slope = mixture.value_and_slope(x.flatten(2))
    return value.view(x.shape), slope.log().flatten(1).sum(1)


def fast_value(
    bijection: Bijection, x: Tensor, dtype: torch.dtype = torch.bfloat16, compiled: bool = True
) -> Tensor:
    """z alone, of a chain of Mint layers with any activation, for losses that need no log-det."""
    leaves = bijection.leaves()
    weights = _prepared_layers(leaves, dtype, compiled)
    for part in leaves:
        if isinstance(part, MintLayer):
            form = part.kernel_size, part.ordering.upper, part.activation_name
            x = compiled_if(compiled, mint_value)(x, weights[part], *form)
        else:
            x = part.value(x)
    return x


def why_not_fast(bijection: Bijection) -> str:
    """Why a chain has no fast path, or nothing if it has one."""
    for part in bijection.leaves():
        if isinstance(part, MintLayer) and part.activation_name != "elu":
            return f"the fast path knows elu alone; this net has {part.activation_name}"
        if isinstance(part, RealNVPCoupling):
            own = isinstance(part.conditioner.network, HalfNetwork)
            if not (own and part.scale_name == "bounded" and part.centred):
                return f"the fast path does not know this coupling: {part.extra_repr()}"
    return ""


def _prepared_layers(
    leaves: Sequence[Bijection], dtype: torch.dtype, compiled: bool
) -> dict[MintLayer, Prepared]:
    """`prepared` for all Mint layers, those of one shape and ordering together."""
    groups: dict[tuple[object, ...], list[MintLayer]] = {}
    for layer in (part for part in leaves if isinstance(part, MintLayer)):
        key = layer.event_shape, layer.ordering.upper, layer.filters, layer.kernel_size
        groups.setdefault(key, []).append(layer)
    found: dict[MintLayer, Prepared] = {}
    for layers in groups.values():
        one = layers[0]
        kernels = [[getattr(layer, f"weight{i}") for layer in layers] for i in (1, 2, 3)]
        biases = [[getattr(layer, f"bias{i}") for layer in layers] for i in (1, 2, 3)]
        rest = [layer.t for layer in layers], (one.mask1, one.mask2, one.mask3), one.ordering.upper
        together = compiled_if(compiled, prepared)(kernels, biases, *rest, dtype)
        parts = zip(*(part.unbind(0) for part in together), strict=True)
        found.update(zip(layers, (Prepared(*part) for part in parts), strict=True))
    return found


@functools.cache
def compiled_if(wanted: bool, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled if wanted: once for each shape, when it is first asked for."""
    if not wanted:
        return function
    torch._dynamo.config.cache_size_limit = 64
    return torch.compile(function, dynamic=False)


def mint_layer(x: Tensor, weights: Prepared, filters: int, size: int, upper: bool) -> Mapped:
    """Eq. 2 for ELU with K = ``filters``, R = ``size``, and the log of |diag J|, summed."""
    y, v1, v2 = _eq2(x, weights, size, upper, "elu")
    channels, t = x.shape[1], weights.t
    d1, d2 = v1.clamp(max=0).exp(), v2.clamp(max=0).exp()
    terms = d2.permute(0, 2, 3, 1).float() * (d1.permute(0, 2, 3, 1) @ weights.product.mT).float()
    copies = terms[..., : channels * filters].unflatten(-1, (channels, filters))
    return y, (t.permute(1, 2, 0) + copies.sum(-1)).log().flatten(1).sum(1)


def mint_value(x: Tensor, weights: Prepared, size: int, upper: bool, activation: str) -> Tensor:
    """Eq. 2 alone. Shapes: (batch, C, H, W) → (batch, C, H, W)."""
    return _eq2(x, weights, size, upper, activation)[0]


def _eq2(
    x: Tensor, weights: Prepared, size: int, upper: bool, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """t ⊙ x + W³ ⊛ h(W² ⊛ h(W¹ ⊛ x + b¹) + b²) + b³, and both arguments of h."""
    first, second, third, b1, b2, b3, _, t = weights
    channels, radius, dtype = x.shape[1], size // 2, second.dtype
    h, taps = getattr(F, activation), seen_taps(channels, size, upper)
    x = x.contiguous(memory_format=torch.channels_last)
    if channels <= GATHERED:
        seen = torch.stack(_shifted(x.permute(0, 2, 3, 1).to(dtype), taps, size), 3).flatten(3)
        v1 = (seen @ first + b1).permute(0, 3, 1, 2)
    else:
        v1 = F.conv2d(x.to(dtype), first, b1, padding=radius)
    h1 = h(v1)
    if channels == 1:
        h1 = F.pad(h1, (0, 0, 0, radius) if upper else (0, 0, radius, 0))
    v2 = F.conv2d(h1, second, b2, padding=(0 if channels == 1 else radius, radius))
    h2 = h(v2)
    if channels <= GATHERED:
        parts = (h2.permute(0, 2, 3, 1) @ third).unflatten(-1, (len(taps), channels))
        columns = zip(parts.unbind(3), taps, strict=True)
        sums = torch.stack([_shifted(p.float(), [tap], size)[0] for p, tap in columns]).sum(0)
    else:
        sums = F.conv2d(h2, third, padding=radius).permute(0, 2, 3, 1)
    return t * x + sums.permute(0, 3, 1, 2) + b3[:, None, None], v1, v2


def prepared(
    weights: Sequence[Sequence[Tensor]],
    biases: Sequence[Sequence[Tensor]],
    t: Sequence[Tensor],
    masks: Sequence[Tensor],
    upper: bool,
    dtype: torch.dtype,
) -> Prepared:
    """W¹, W², W³, b¹, b², b³ and t of L layers of one shape, masked, with the signs of Eq. 4."""
    w1, w2, w3 = (torch.stack(list(w)) * mask for w, mask in zip(weights, masks, strict=True))
    b1, b2, b3 = (torch.stack(list(bias)) for bias in biases)
    channels, width, size = w3.shape[1], w2.shape[1], w2.shape[-1]
    dead, radius = -width % ALIGNMENT.get(w2.device.type, 64), size // 2
    group = torch.arange(width, device=w2.device) // (width // channels)
    same = group[:, None] == group[None, :]
    # Eq. 4: only centre taps between copies of one channel change, and of those the sign.
    own1, own3 = _own(w1[..., radius, radius].mT), _own(w3[..., radius, radius])
    sign = own3.sign()[:, :, None] * own1.sign()[:, None, :]
    centre = torch.arange(size * size, device=w2.device) == size * size // 2
    constrained = same[:, :, None, None] & centre.view(size, size)
    w2 = torch.where(constrained, w2.abs() * sign[..., None, None], w2)
    # diag(W³ᵢ) diag(W²ᵢⱼ) diag(W¹ⱼ) as one block-diagonal matrix, 0 between channels.
    product = own3[:, :, None] * w2[..., radius, radius] * own1[:, None, :]
    product = F.pad(torch.where(same, product, 0.0), (0, dead, 0, dead)).to(dtype)
    seen = seen_taps(channels, size, upper)
    taps = slice(seen.start, seen.stop)
    if channels == 1:  # what the mask leaves lies in a rectangle of rows up to the centre
        w2 = w2[..., radius:, :] if upper else w2[..., : radius + 1, :]
    second = _channels_last(F.pad(w2, (0, 0, 0, 0, 0, dead, 0, dead)).to(dtype))
    if channels <= GATHERED:
        first = F.pad(w1.flatten(3)[..., taps], (0, 0, 0, 0, 0, dead))  # (L, width, C, T)
        first = first.permute(0, 3, 2, 1).flatten(1, 2).to(dtype)
        third = F.pad(w3.flatten(3)[..., taps], (0, 0, 0, dead))  # (L, C, width, T)
        third = third.permute(0, 2, 3, 1).flatten(2).to(dtype)
    else:
        first = _channels_last(F.pad(w1, (0, 0, 0, 0, 0, 0, 0, dead)).to(dtype))
        third = _channels_last(F.pad(w3, (0, 0, 0, 0, 0, dead)).to(dtype))
    b1, b2 = (F.pad(bias, (0, dead)).to(dtype) for bias in (b1, b2))
    return Prepared(first, second, third, b1, b2, b3, product, torch.stack(list(t)))


def coupling_layer(x: Tensor, coupling: RealNVPCoupling, dtype: torch.dtype) -> Mapped:
    """y₁ = x₁, y₂ = σ(s(x₁)) ⊙ (x₂ + t(x₁)) with σ = exp(γ + 2 tanh(s / 2)), and Σ log σ."""
    half, upper = cast(HalfNetwork, coupling.conditioner.network), coupling.ordering.upper
    low, high = x.chunk(2, 1)
    read, moved = (high, low) if upper else (low, high)
    with torch.autocast(x.device.type, dtype, enabled=dtype != x.dtype):
        found = half.network(read.contiguous(memory_format=torch.channels_last))
    raw, shift = found.to(x.dtype).chunk(2, 1)
    log_scale = half.log_gain[:, None, None] + 2.0 * torch.tanh(0.5 * raw)
    moved = (moved + shift) * log_scale.exp()
    return torch.cat([moved, read] if upper else [read, moved], 1), log_scale.flatten(1).sum(1)


def seen_taps(channels: int, size: int, upper: bool) -> range:
    """The taps of a kernel, row by row, that the mask leaves to some pair of channels."""
    taps, centre = range(size * size), size * size // 2
    if channels > 1:
        return taps
    return taps[centre:] if upper else taps[: centre + 1]


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


def _channels_last(kernels: Tensor) -> Tensor:
    """(L, out, in, R, R) with ``in`` last in memory."""
    return kernels.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
