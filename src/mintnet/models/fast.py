"""The fast path of training on a GPU for whole networks, see `fast_layers`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from mintnet.bijections import Bijection, MintLayer
from mintnet.flows import RealNVPCoupling
from mintnet.flows.networks import HalfNetwork
from mintnet.models.fast_layers import Prepared, coupling_layer, mint_layer, mint_value, prepared

KEPT = 0.5
"""The share of what a backward pass needs that is kept for it; the rest is computed again."""


def fast_transform(
    bijection: Bijection, x: Tensor, dtype: torch.dtype = torch.bfloat16, compiled: bool = True
) -> tuple[Tensor, Tensor]:
    """z and log |det J| of a chain of Mint layers with ELU, squeezes and couplings.

    Shapes: (batch, C, H, W) → those of the chain, (batch,).

    Examples:
        >>> from mintnet import MintNet
        >>> net, x = MintNet.preset("digits"), torch.randn(2, 1, 8, 8)
        >>> z, log_det = fast_transform(net, x, torch.float32, compiled=False)
        >>> bool(torch.allclose(z, net(x)[0], atol=1e-5))
        True
    """
    if reason := why_not_fast(bijection):
        raise ValueError(reason)
    leaves = bijection.leaves()
    weights = _prepared_layers(leaves, dtype, compiled)
    total = x.new_zeros(len(x))
    for part in leaves:
        if isinstance(part, MintLayer):
            x, log_det = _compiled(mint_layer, compiled)(x, weights[part], *_shape_of(part))
        elif isinstance(part, RealNVPCoupling):
            couple = _compiled(coupling_layer, compiled)
            x, log_det = couple(x, *_coupling_parts(part), part.ordering.upper, dtype)
        else:
            x, log_det = part.transform(x)
        total = total + log_det
    return x, total


def fast_value(
    bijection: Bijection, x: Tensor, dtype: torch.dtype = torch.bfloat16, compiled: bool = True
) -> Tensor:
    """z alone, of a chain of Mint layers with any activation, for losses that need no log-det."""
    leaves = bijection.leaves()
    weights = _prepared_layers(leaves, dtype, compiled)
    for part in leaves:
        if isinstance(part, MintLayer):
            x = _compiled(mint_value, compiled)(x, weights[part], *_shape_of(part))
        else:
            x = part.value(x)
    return x


def why_not_fast(bijection: Bijection) -> str:
    """Why a chain has no fast path, or nothing if it has one."""
    for part in bijection.leaves():
        if isinstance(part, MintLayer) and part.activation_name != "elu":
            return f"the fast path knows elu alone; this net has {part.activation_name}"
        if isinstance(part, RealNVPCoupling) and not (
            isinstance(part.conditioner.network, HalfNetwork)
            and part.scale_name == "bounded"
            and part.centred
        ):
            return f"the fast path does not know this coupling: {part.extra_repr()}"
    return ""


def _prepared_layers(
    leaves: Sequence[Bijection], dtype: torch.dtype, compiled: bool
) -> dict[MintLayer, Prepared]:
    """`prepared` for all Mint layers, those of one shape and ordering together."""
    groups: dict[tuple[object, ...], list[MintLayer]] = {}
    for layer in (part for part in leaves if isinstance(part, MintLayer)):
        groups.setdefault((layer.event_shape, layer.ordering.upper), []).append(layer)
    found: dict[MintLayer, Prepared] = {}
    for layers in groups.values():
        one = layers[0]
        together = _compiled(prepared, compiled)(
            [[getattr(layer, f"weight{i}") for layer in layers] for i in (1, 2, 3)],
            [[getattr(layer, f"bias{i}") for layer in layers] for i in (1, 2, 3)],
            [layer.t for layer in layers],
            (one.mask1, one.mask2, one.mask3),
            one.ordering.upper,
            dtype,
        )
        parts = zip(*(part.unbind(0) for part in together), strict=True)
        found.update(zip(layers, (Prepared(*part) for part in parts), strict=True))
    return found


def _shape_of(layer: MintLayer) -> tuple[int, int, bool, str]:
    return layer.filters, layer.kernel_size, layer.ordering.upper, layer.activation_name


def _coupling_parts(part: RealNVPCoupling) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Weights and biases of the three convolutions of a coupling's own network, and its gain."""
    layers = [layer for layer in part.modules() if isinstance(layer, nn.Conv2d)]
    gain = cast(HalfNetwork, part.conditioner.network).log_gain
    biases = [cast(Tensor, layer.bias) for layer in layers]
    return [layer.weight for layer in layers], biases, gain


@functools.cache
def _compiled(function: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    """A function of this module compiled, made when it is first asked for."""
    if not wanted:
        return function
    import torch._functorch.config  # takes its time

    torch._dynamo.config.cache_size_limit = 64
    made = torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def with_little_kept(*args: Any) -> Any:
        with torch._functorch.config.patch(activation_memory_budget=KEPT):
            return made(*args)

    return with_little_kept
