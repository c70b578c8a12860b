"""The fast path of the kernels, for a whole network."""

from __future__ import annotations

import torch
from torch import Tensor

from mintnet import kernels
from mintnet.bijections import MintLayer
from mintnet.kernels.mint import Prepared, mint_layer, prepared
from mintnet.models.mintnet import MintNet


def fast_transform(
    net: MintNet, x: Tensor, dtype: torch.dtype = torch.bfloat16, compiled: bool = True
) -> tuple[Tensor, Tensor]:
    """z and log |det J| of a chain of Mint layers and squeezes, by the fast path.

    Shapes: (batch, C, H, W) → those of the net.
    """
    if reason := why_not_fast(net):
        raise ValueError(reason)
    layer_function, prepare = mint_layer, prepared
    if compiled:
        layer_function, prepare = kernels.compiled(mint_layer), kernels.compiled(prepared)
    leaves = net.chain.leaves()
    weights = dict[MintLayer, Prepared]()
    for layers in _alike([part for part in leaves if isinstance(part, MintLayer)]):
        first = layers[0]
        together = prepare(
            [[getattr(part, f"weight{i}") for part in layers] for i in (1, 2, 3)],
            [[getattr(part, f"bias{i}") for part in layers] for i in (1, 2, 3)],
            [part.t for part in layers],
            (first.mask1, first.mask2, first.mask3),
            first.ordering.upper,
            dtype,
        )
        weights.update(zip(layers, together.unbind(), strict=True))
    total = x.new_zeros(len(x))
    for part in leaves:
        if isinstance(part, MintLayer):
            x, log_det = layer_function(
                x, weights[part], part.filters, part.kernel_size, part.ordering.upper
            )
        else:
            x, log_det = part.transform(x)
        total = total + log_det
    return x, total


def why_not_fast(net: MintNet) -> str:
    """Why a net cannot take the fast path, or nothing if it can.

    Examples:
        >>> why_not_fast(MintNet.preset("digits"))
        ''
    """
    if net.config.activation != "elu":
        return f"the fast path knows elu alone; this net has {net.config.activation}"
    return ""


def _alike(layers: list[MintLayer]) -> list[list[MintLayer]]:
    """Layers of one shape and ordering together."""
    groups: dict[tuple[object, ...], list[MintLayer]] = {}
    for layer in layers:
        groups.setdefault((layer.event_shape, layer.ordering.upper), []).append(layer)
    return list(groups.values())
