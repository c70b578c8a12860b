"""One density network for each family of flows, of comparable size and on the same footing.

All take images (C, H, W) after the logit, and begin with a shift and a scale for each pixel, set by
the first training batch. None splits off dimensions on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mintnet.bijections import ActNorm, Bijection, Chain, Reshape, paired_mint
from mintnet.flows import (
    FFJORD,
    MAF,
    EntryScaling,
    IResNetBlock,
    NICECoupling,
    RealNVPCoupling,
    glow_step,
    macow_unit,
)
from mintnet.models.base import Shape
from mintnet.models.mintnet import in_stages

Build = Callable[[Shape, int, int], Bijection]
Layers = list[Bijection]


@dataclass(frozen=True)
class Family:
    """A family of flows and how to build a network of it.

    Attributes:
        title: its name in tables.
        build: (shape of an image, depth, width) to the network.
        source: the paper it comes from.
        digits: depth and width for 8 × 8 images.
        mnist: depth and width for 28 × 28 images.
        exact: its likelihood is exact, not estimated.
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
        >>> net(torch.randn(5, 1, 8, 8))[0].shape
        torch.Size([5, 16, 2, 2])
        >>> family_net("gan", (1, 8, 8))
        Traceback (most recent call last):
        ValueError: unknown family 'gan'; choose one of nice, real-nvp, glow, ...
    """
    if name not in FAMILIES:
        raise ValueError(f"unknown family {name!r}; choose one of {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    own = family.digits if shape[1] * shape[2] <= 256 else family.mnist
    return family.build(shape, depth or own[0], width or own[1])


def _images(layers: Callable[[Shape, int], Layers], begin: int = 0) -> Build:
    """``layers(shape, width)``, depth times, at the resolutions 1, 1/2, 1/4 from ``begin`` on."""

    def build(shape: Shape, depth: int, width: int) -> Bijection:
        def stage(number: int, shape: Shape) -> Layers:
            times = depth if number >= begin else 0
            return [part for _ in range(times) for part in layers(shape, width)]

        return Chain(EntryScaling(shape), *in_stages(shape, 3, stage))

    return build


def _vectors(layers: Callable[[int, int, bool], Layers], *after: type[EntryScaling]) -> Build:
    """``layers(D, width, upper)`` of vectors of all D entries, depth times, then ``after``."""

    def build(shape: Shape, depth: int, width: int) -> Bijection:
        size = shape[0] * shape[1] * shape[2]
        parts = [part for k in range(depth) for part in layers(size, width, bool(k % 2))]
        parts += [part((size,)) for part in after]
        there, back = Reshape(shape, (size,)), Reshape((size,), shape)
        return Chain(EntryScaling(shape), there, *parts, back)

    return build


def _real_nvp(s: Shape, width: int) -> Layers:
    kinds = ["checkerboard"] if s[0] == 1 else ["checkerboard", "channel"]
    couplings = [(kind, upper) for kind in kinds for upper in (False, True)]
    return [
        part
        for kind, upper in couplings
        for part in (RealNVPCoupling(s, kind, upper, hidden=width), ActNorm(s[0]))
    ]


def _conv_maf(s: Shape, width: int) -> Layers:
    filters = max(1, width // s[0])
    return [part for up in (False, True) for part in (MAF(s, filters, upper=up), ActNorm(s[0]))]


def _glow(s: Shape, width: int, mixing: str = "1x1") -> Layers:
    return [glow_step(s[0], s[1:], width, mixing)]


_NICE = _vectors(
    lambda size, width, upper: [NICECoupling((size,), upper=upper, hidden=width)], EntryScaling
)
_MAF = _vectors(lambda size, width, up: [MAF((size,), width, upper=up), EntryScaling((size,))])
_EMERGING = _images(lambda s, width: _glow(s, width, "emerging"), begin=1)
_MACOW = _images(lambda s, width: [macow_unit(s, width), *_glow(s, width)], begin=1)
_MINTNET = _images(lambda s, width: [paired_mint(s[0], max(1, width // s[0]), s[1:])])
_I_RESNET = _images(lambda s, width: [IResNetBlock(s, width, terms=5), ActNorm(s[0])])
_FFJORD = _images(lambda s, width: [FFJORD(s, width, "rk4", steps=4), ActNorm(s[0])], begin=1)

FAMILIES: dict[str, Family] = {
    "nice": Family("NICE", _NICE, "Dinh et al. 2014", (6, 128), (6, 1000)),
    "real-nvp": Family("Real NVP", _images(_real_nvp), "Dinh et al. 2017", (1, 32), (2, 64)),
    "glow": Family("Glow", _images(_glow, 1), "Kingma and Dhariwal 2018", (4, 32), (8, 96)),
    "emerging": Family("Emerging", _EMERGING, "Hoogeboom et al. 2019", (4, 32), (8, 96)),
    "macow": Family("MaCow", _MACOW, "Ma et al. 2019", (2, 32), (4, 64)),
    "maf": Family("MAF", _MAF, "Papamakarios et al. 2017", (5, 3), (5, 1)),
    "conv-maf": Family("MAF, convolutional", _images(_conv_maf), "the same", (2, 32), (3, 48)),
    "mintnet": Family("MintNet", _MINTNET, "Song et al. 2019", (2, 24), (4, 48)),
    "i-resnet": Family("i-ResNet", _I_RESNET, "Behrmann et al. 2019", (2, 32), (4, 64), False),
    "ffjord": Family("FFJORD", _FFJORD, "Grathwohl et al. 2019", (1, 24), (2, 64), False),
}
"""Every family, by the name that commands take."""
