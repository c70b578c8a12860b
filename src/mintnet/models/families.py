"""One density network for each family of flows, of comparable size and on the same footing.

All take images (C, H, W) after the logit, and begin with a shift and a scale for each pixel, set by
the first training batch. None splits off dimensions on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from mintnet.bijections import ActNorm, Bijection, Chain, Reshape, Squeeze, paired_mint
from mintnet.flows import (
    FFJORD,
    MAF,
    EntryScaling,
    IResNetBlock,
    NICECoupling,
    Planar,
    RealNVPCoupling,
    Sylvester,
    glow_step,
    macow_unit,
)

Shape = tuple[int, int, int]
Build = Callable[[Shape, int, int], Bijection]


@dataclass(frozen=True)
class Family:
    """A family of flows and how to build a network of it.

    Attributes:
        title: its name in tables.
        build: (shape of an image, depth, width) to the network.
        exact: its likelihood is exact, not estimated.
        source: the paper it comes from.
        digits: depth and width for 8 × 8 images.
        mnist: depth and width for 28 × 28 images.
    """

    title: str
    build: Build
    source: str
    digits: tuple[int, int]
    mnist: tuple[int, int]
    exact: bool = True


def family_net(
    name: str, shape: Shape, depth: int | None = None, width: int | None = None
) -> Bijection:
    """The network of a family for images of that shape.

    Depth and width are those for digits or MNIST, whichever is nearer in size, unless given.

    Examples:
        >>> import torch
        >>> net = family_net("glow", (1, 8, 8), depth=1, width=4)
        >>> z, log_det = net(torch.randn(5, 1, 8, 8))
        >>> z.shape
        torch.Size([5, 16, 2, 2])
        >>> family_net("gan", (1, 8, 8))
        Traceback (most recent call last):
        ValueError: unknown family 'gan'; choose one of nice, real-nvp, glow, ...
    """
    if name not in FAMILIES:
        raise ValueError(f"unknown family {name!r}; choose one of {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    usual = family.digits if shape[1] * shape[2] <= 256 else family.mnist
    return family.build(shape, depth or usual[0], width or usual[1])


def parameter_count(net: nn.Module) -> int:
    """Weights and biases, those that a mask holds at 0 left out.

    Examples:
        >>> from mintnet.calculus import MaskedLinear
        >>> parameter_count(MaskedLinear(3))   # six weights of nine, three biases
        9
    """
    total = 0
    for module in net.modules():
        buffers = dict(module.named_buffers(recurse=False))
        for name, parameter in module.named_parameters(recurse=False):
            mask = buffers.get(name.replace("weight", "mask")) if "weight" in name else None
            total += parameter.numel() if mask is None else int(mask.sum())
    return total


def _in_stages(
    shape: Shape, depth: int, layers: Callable[[Shape, int], list[Bijection]], begin: int = 0
) -> Bijection:
    """``depth`` groups of layers at each of the resolutions 1, 1/2 and 1/4, from ``begin`` on."""
    parts: list[Bijection] = [EntryScaling(shape)]
    for stage in range(3):
        if stage > 0:
            parts.append(Squeeze(2, shape))
            shape = (4 * shape[0], shape[1] // 2, shape[2] // 2)
        if stage >= begin:
            parts.extend(part for index in range(depth) for part in layers(shape, index))
    return Chain(*parts)


def _as_vectors(shape: Shape, layers: list[Bijection], size: int) -> Bijection:
    scaling = EntryScaling(shape)
    return Chain(scaling, Reshape(shape, (size,)), *layers, Reshape((size,), shape))


def _nice(shape: Shape, depth: int, width: int) -> Bijection:
    size = shape[0] * shape[1] * shape[2]
    couplings: list[Bijection] = [
        NICECoupling((size,), "checkerboard", upper=bool(index % 2), hidden=width)
        for index in range(depth)
    ]
    return _as_vectors(shape, [*couplings, EntryScaling((size,))], size)


def _real_nvp(shape: Shape, depth: int, width: int) -> Bijection:
    def layers(shape: Shape, index: int) -> list[Bijection]:
        kinds = ["checkerboard"] if shape[0] == 1 else ["checkerboard", "channel"]
        return [
            part
            for kind in kinds
            for upper in (False, True)
            for part in (RealNVPCoupling(shape, kind, upper, hidden=width), ActNorm(shape[0]))
        ]

    return _in_stages(shape, depth, layers)


def _glow(shape: Shape, depth: int, width: int) -> Bijection:
    return _in_stages(shape, depth, lambda s, _: [glow_step(s[0], s[1:], width)], begin=1)


def _emerging(shape: Shape, depth: int, width: int) -> Bijection:
    return _in_stages(
        shape, depth, lambda s, _: [glow_step(s[0], s[1:], width, "emerging")], begin=1
    )


def _macow(shape: Shape, depth: int, width: int) -> Bijection:
    def layers(shape: Shape, index: int) -> list[Bijection]:
        return [macow_unit(shape, width), glow_step(shape[0], shape[1:], width)]

    return _in_stages(shape, depth, layers, begin=1)


def _maf(shape: Shape, depth: int, width: int) -> Bijection:
    size = shape[0] * shape[1] * shape[2]
    layers: list[Bijection] = []
    for index in range(depth):
        layers += [MAF((size,), width, upper=bool(index % 2)), EntryScaling((size,))]
    return _as_vectors(shape, layers, size)


def _conv_maf(shape: Shape, depth: int, width: int) -> Bijection:
    def layers(shape: Shape, index: int) -> list[Bijection]:
        filters = max(1, width // shape[0])
        return [
            part
            for upper in (False, True)
            for part in (MAF(shape, filters, upper=upper), ActNorm(shape[0]))
        ]

    return _in_stages(shape, depth, layers)


def _mintnet(shape: Shape, depth: int, width: int) -> Bijection:
    return _in_stages(shape, depth, lambda s, _: [paired_mint(s[0], max(1, width // s[0]), s[1:])])


def _planar(shape: Shape, depth: int, width: int) -> Bijection:
    size = shape[0] * shape[1] * shape[2]
    return _as_vectors(shape, [Planar(size) for _ in range(depth)], size)


def _sylvester(shape: Shape, depth: int, width: int) -> Bijection:
    size = shape[0] * shape[1] * shape[2]
    layers: list[Bijection] = []
    for _ in range(depth):
        layers += [Sylvester(size, min(width, size)), EntryScaling((size,))]
    return _as_vectors(shape, layers, size)


def _i_resnet(shape: Shape, depth: int, width: int) -> Bijection:
    def layers(shape: Shape, index: int) -> list[Bijection]:
        return [IResNetBlock(shape, width, terms=5), ActNorm(shape[0])]

    return _in_stages(shape, depth, layers)


def _ffjord(shape: Shape, depth: int, width: int) -> Bijection:
    def layers(shape: Shape, index: int) -> list[Bijection]:
        return [FFJORD(shape, width, "rk4", steps=4), ActNorm(shape[0])]

    return _in_stages(shape, depth, layers, begin=1)


FAMILIES: dict[str, Family] = {
    "nice": Family("NICE", _nice, "Dinh et al. 2014", (6, 128), (6, 1000)),
    "real-nvp": Family("Real NVP", _real_nvp, "Dinh et al. 2017", (1, 32), (2, 64)),
    "glow": Family("Glow", _glow, "Kingma and Dhariwal 2018", (4, 32), (8, 96)),
    "emerging": Family("Emerging", _emerging, "Hoogeboom et al. 2019", (4, 32), (8, 96)),
    "macow": Family("MaCow", _macow, "Ma et al. 2019", (2, 32), (4, 64)),
    "maf": Family("MAF", _maf, "Papamakarios et al. 2017", (5, 3), (5, 1)),
    "conv-maf": Family("MAF, convolutional", _conv_maf, "the same", (2, 32), (3, 48)),
    "mintnet": Family("MintNet", _mintnet, "Song et al. 2019", (2, 24), (4, 48)),
    "planar": Family("planar", _planar, "Rezende and Mohamed 2015", (32, 1), (32, 1)),
    "sylvester": Family("Sylvester", _sylvester, "van den Berg et al. 2018", (8, 16), (8, 32)),
    "i-resnet": Family("i-ResNet", _i_resnet, "Behrmann et al. 2019", (2, 32), (4, 64), False),
    "ffjord": Family("FFJORD", _ffjord, "Grathwohl et al. 2019", (1, 24), (2, 64), False),
}
"""Every family, by the name that commands take."""
