"""The fast path of the kernels, for a whole network."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from mintnet import kernels
from mintnet.bijections import MintLayer
from mintnet.flows import RealNVPCoupling
from mintnet.flows.networks import HalfNetwork
from mintnet.kernels.chip import can_fuse, chip_layer
from mintnet.kernels.coupling import coupling_layer
from mintnet.kernels.mint import Prepared, mint_layer, prepared, prepared_layers
from mintnet.models.mintnet import MintNet
from mintnet.precision import true_float32

_log = logging.getLogger(__name__)

ON_CHIP_CHANNELS = 4
"""The most channels for which layers on the chip have been faster on a GPU, and right."""
AGREEMENT = 1e-2
"""How much farther from true float32 a kernel may be than twice what the plain way is."""

LayerFunction = Callable[..., tuple[Tensor, Tensor]]
_tried: dict[tuple[object, ...], bool] = {}
"""Where layers on the chip have been tried, and whether they ran."""
_said: set[torch.device] = set()
"""Devices that have declined, and said so: in one line, not one for each kind of layer."""


def fast_transform(
    net: MintNet,
    x: Tensor,
    dtype: torch.dtype = torch.bfloat16,
    compiled: bool = True,
    on_chip: bool = True,
) -> tuple[Tensor, Tensor]:
    """z and log |det J| of a chain of Mint layers, squeezes and couplings, by the fast path.

    Shapes: (batch, C, H, W) → those of the net. With ``on_chip``, layers of few channels are
    `kernels.chip.chip_layer` where there is a GPU and its compiler takes them.
    """
    if reason := why_not_fast(net):
        raise ValueError(reason)
    plain, prepare, couple = mint_layer, prepared, coupling_layer
    if compiled:
        plain, prepare, couple = (kernels.compiled(f) for f in (plain, prepare, couple))
    leaves = net.chain.leaves()
    weights = dict[MintLayer, Prepared]()
    for layers in _alike([part for part in leaves if isinstance(part, MintLayer)]):
        together = prepared_layers(layers, dtype, prepare)
        weights.update(zip(layers, together, strict=True))
    total = x.new_zeros(len(x))
    for part in leaves:
        if isinstance(part, MintLayer):
            arguments = (weights[part], part.filters, part.kernel_size, part.ordering.upper)
            chosen = chip_layer if on_chip and compiled and _runs_on_chip(x, *arguments) else plain
            x, log_det = chosen(x, *arguments)
        elif isinstance(part, RealNVPCoupling):
            x, log_det = couple(x, *_of_coupling(part), part.ordering.upper, dtype)
        else:
            x, log_det = part.transform(x)
        total = total + log_det
    return x, total


def _of_coupling(part: RealNVPCoupling) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Weights and biases of the three convolutions of a coupling's own network, and its gain."""
    layers = [layer for layer in part.modules() if isinstance(layer, nn.Conv2d)]
    gain = cast(HalfNetwork, part.conditioner.network).log_gain
    biases = [cast(Tensor, layer.bias) for layer in layers]
    return [layer.weight for layer in layers], biases, gain


def _runs_on_chip(x: Tensor, weights: Prepared, filters: int, size: int, upper: bool) -> bool:
    """Whether a layer can be computed on the chip, tried once for each kind of layer.

    Compilers and drivers have many ways to decline, and may do so in the backward pass, when it
    is too late for another way. So both passes are tried.
    """
    if not x.is_cuda or not kernels.hand_written_allowed() or x.shape[1] > ON_CHIP_CHANNELS:
        return False
    if not can_fuse(x, weights, size, upper):
        return False
    key = (x.device, weights.second.dtype, x.shape[1:], filters, size, upper)
    if key not in _tried:
        if torch.cuda.is_current_stream_capturing():
            return False  # nothing may be compiled now
        _tried[key] = _try(chip_layer, x, weights, filters, size, upper)
    return _tried[key]


def _try(
    function: LayerFunction, x: Tensor, weights: Prepared, filters: int, size: int, upper: bool
) -> bool:
    """Whether both passes of a layer run and are as exact as the plain ones; a line if not.

    A kernel may be wrong where its compiler is, and training would go wrong without a word.
    """
    try:
        alike, x = _of_usual_size(weights, x)
        found = _both_passes(function, x, alike, filters, size, upper)
        plain = _both_passes(mint_layer, x, alike, filters, size, upper)
        with true_float32():
            exact = Prepared(*(part.float() for part in alike))
            true = _both_passes(mint_layer, x, exact, filters, size, upper)
        for a, b, c in zip(found, plain, true, strict=True):
            apart, usual = (float((way - c).norm() / c.norm()) for way in (a, b))
            if not apart <= 2 * usual + AGREEMENT:
                raise ArithmeticError(
                    f"they are off by {apart:.1e}, where the plain way is by {usual:.1e}"
                )
    except torch.OutOfMemoryError:
        raise  # the plain layer needs more
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        if x.device not in _said:
            _said.add(x.device)
            _log.warning("%s: layers of few channels take the plain way (%s)", x.device, reason)
        return False
    return True


@torch.no_grad()
def _of_usual_size(weights: Prepared, x: Tensor) -> tuple[Prepared, Tensor]:
    """Random weights of the same shapes and zeros, and an input; fresh weights are all but 0."""
    generator = torch.Generator(x.device).manual_seed(0)

    def random(like: Tensor) -> Tensor:
        return torch.randn(like.shape, device=x.device, generator=generator)

    def kernel(part: Tensor, seen: int) -> Tensor:
        return torch.where(part != 0, random(part) / seen**0.5, 0.0).to(part.dtype)

    width = len(weights.bias1)
    alike = Prepared(
        first=kernel(weights.first, weights.first[..., 0].numel()),
        second=kernel(weights.second, weights.second[0].numel()),
        third=kernel(weights.third, width),
        bias1=kernel(weights.bias1, 1),
        bias2=kernel(weights.bias2, 1),
        bias3=random(weights.bias3),
        product=kernel(weights.product, width).abs(),
        t=0.5 + random(weights.t).abs(),
    )
    return alike, random(x)


def _both_passes(
    function: LayerFunction, x: Tensor, weights: Prepared, filters: int, size: int, upper: bool
) -> list[Tensor]:
    """y, log |det J| and gradients with respect to x and all weights, float32."""
    with torch.enable_grad():
        alone = Prepared(*(part.detach().requires_grad_() for part in weights))
        x = x.detach().requires_grad_()
        y, log_det = function(x, alone, filters, size, upper)
        generator = torch.Generator(x.device).manual_seed(1)
        wanted = [torch.randn(t.shape, device=x.device, generator=generator) for t in (y, log_det)]
        gradients = torch.autograd.grad((y, log_det), (x, *alone), wanted)
    return [tensor.detach().float() for tensor in (y, log_det, *gradients)]


def why_not_fast(net: MintNet) -> str:
    """Why a net cannot take the fast path, or nothing if it can.

    Examples:
        >>> why_not_fast(MintNet.preset("digits"))
        ''
    """
    if net.config.activation != "elu":
        return f"the fast path knows elu alone; this net has {net.config.activation}"
    for part in net.chain.leaves():
        if isinstance(part, RealNVPCoupling) and not is_known_coupling(part):
            return f"the fast path does not know this coupling: {part.extra_repr()}"
    return ""


def is_known_coupling(part: RealNVPCoupling) -> bool:
    """Whether a coupling is what `coupling_layer` computes."""
    known = isinstance(part.conditioner.network, HalfNetwork) and part.scale_name == "bounded"
    return known and part.centred


def _alike(layers: list[MintLayer]) -> list[list[MintLayer]]:
    """Layers of one shape and ordering together."""
    groups: dict[tuple[object, ...], list[MintLayer]] = {}
    for layer in layers:
        groups.setdefault((layer.event_shape, layer.ordering.upper), []).append(layer)
    return list(groups.values())
