"""Layers of other flows in the registry, and what an entry of the registry is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import mintnet as mn
from mintnet.flows.couplings import HalfNetwork


@dataclass(frozen=True)
class Case:
    """A bijection, made in float64 and evaluation mode and the same each time, and its claims."""

    name: str
    build: Callable[[], mn.Bijection]
    input_shape: tuple[int, ...]
    triangular: bool = False  # its Jacobian is, in its ordering
    volume_preserving: bool = False
    exact: bool = True  # its log-determinant is not estimated
    tolerance: float = 1e-9  # of log-determinants and of round trips, relative
    span: tuple[float, float] = (-2.0, 2.0)  # where sample inputs are drawn
    onto: bool = True  # otherwise injective only
    inverted: bool = False  # the inverse of a triangular one: no proof, and forward is solved
    adaptive: float = 0.0  # values are as exact as this, since an integrator chooses its steps

    def sample_input(self, batch: int = 3, seed: int = 1) -> Tensor:
        """Inputs in float64, (batch, *input_shape)."""
        generator = torch.Generator().manual_seed(seed)
        unit = torch.rand(batch, *self.input_shape, generator=generator, dtype=torch.float64)
        return self.span[0] + (self.span[1] - self.span[0]) * unit

    def __str__(self) -> str:
        return self.name


@torch.no_grad()
def away_from_zero(module: nn.Module, seed: int = 0, gain: float = 1.0) -> nn.Module:
    """Redraw all weights with magnitudes in gain · [0.4, 1] / √fan-in and either sign."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if "knots" in name:  # they stay evenly spaced
            continue
        unit = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2.0 - 1
        fan_in = max(1, parameter[0].numel()) if parameter.dim() > 1 and "raw_t" not in name else 1
        scale = 1.0 if "raw_t" in name else gain / math.sqrt(fan_in)
        parameter.copy_((0.4 + 0.6 * unit) * sign * scale)
    return module


def _ready(make: Callable[[], mn.Bijection], seed: int, gain: float) -> Callable[[], mn.Bijection]:
    def build() -> mn.Bijection:
        torch.manual_seed(seed)
        return away_from_zero(make().double(), seed, gain).eval()

    return build


def _case(name: str, make: Callable[[], mn.Bijection], shape: tuple[int, ...], **claims) -> Case:
    return Case(name, _ready(make, len(name), 1.5), shape, **claims)


def _members_of_f() -> list[Case]:
    """Layers of other flows that are triangular in a stated ordering."""
    image, vector, ways = (2, 3, 4), (6,), ("lower", "upper")
    case, cases = partial(_case, triangular=True), []
    for partition in ("checkerboard", "channel"):
        for upper, shape in ((False, image), (True, image), (partition == "channel", vector)):
            end = f"{partition}-{ways[upper]}-{len(shape)}d"
            settings = {"partition": partition, "upper": upper, "hidden": 3}
            nice = partial(mn.NICECoupling, shape, **settings)
            real = partial(mn.RealNVPCoupling, shape, **settings)
            cases += [case(f"nice-{end}", nice, shape, volume_preserving=True)]
            cases += [case(f"real-nvp-{end}", real, shape)]
    for scale in ("exp", "softplus", "sigmoid"):
        make = partial(mn.RealNVPCoupling, (3, 3, 3), "channel", hidden=3, scale=scale)
        cases.append(case(f"real-nvp-{scale}", make, (3, 3, 3)))
    for upper, way in enumerate(ways):

        def centred(upper: bool = bool(upper)) -> mn.Bijection:
            network = HalfNetwork((4, 3, 3), 3, upper)
            return mn.RealNVPCoupling((4, 3, 3), "channel", upper, network, centred=True)

        cases.append(case(f"real-nvp-centred-{way}", centred, (4, 3, 3)))
        for shape, filters, layers in ((vector, 2, 1), (vector, 1, 3), (image, 2, 2)):
            make = partial(mn.MAF, shape, filters, layers, bool(upper), activation="tanh")
            cases.append(case(f"maf-{way}-{len(shape)}d-{layers}", make, shape))
    wide = partial(mn.MAF, (1, 4, 5), 2, kernel_size=5, scale="sigmoid")
    cases += [case("maf-elu-exp", lambda: mn.MAF((5,), 2, scale="exp"), (5,))]
    cases += [case("maf-wide-kernel", wide, (1, 4, 5))]
    for upper, kernel, unit in ((0, 3, 0), (1, 3, 0), (0, 5, 1), (1, 1, 0), (0, 1, 1)):
        name = f"emerging-{ways[upper]}-R{kernel}-{'unit' if unit else 'scaled'}"
        make = partial(_signed, kernel, bool(upper), bool(unit))
        cases.append(case(name, make, (3, 3, 4), volume_preserving=bool(unit)))
    for way, breadth in (("down", 5), ("up", 3), ("right", 1), ("left", 3)):
        make = partial(mn.MaCowLayer, image, way, 3, breadth=breadth)
        cases.append(case(f"macow-{way}", make, image))
    conv = partial(mn.iaf, (2, 2, 3), 2, upper=True)
    cases += [case("iaf-dense", lambda: mn.iaf(vector, 2), vector, inverted=True)]
    return [*cases, case("iaf-conv", conv, (2, 2, 3), inverted=True)]


def _signed(kernel: int, upper: bool, unit: bool) -> mn.EmergingFactor:
    """A factor whose slopes have both signs."""
    factor = mn.EmergingFactor(3, (3, 4), kernel, upper, unit)
    factor.sign[1] = -1.0
    return factor


def _outside_f() -> list[Case]:
    """Chains of such layers, and layers whose Jacobian is triangular in no ordering."""
    order, case = torch.tensor([2, 0, 1]), _case
    moved = partial(_case, volume_preserving=True)
    estimated = partial(_case, exact=False, tolerance=2e-4)
    image = (1, 3, 3)
    return [
        moved("reshape", lambda: mn.Reshape((2, 2, 3), (12,)), (2, 2, 3)),
        moved("channel-permutation", lambda: mn.ChannelPermutation(order, (3, 2, 2)), (3, 2, 2)),
        case("entry-scaling", lambda: mn.EntryScaling((2, 3)), (2, 3)),
        case("invertible-1x1", lambda: mn.invertible_1x1(4, (2, 3)), (4, 2, 3)),
        case("emerging", lambda: mn.emerging_convolution(2, (4, 3)), (2, 4, 3)),
        case("glow-step", lambda: mn.glow_step(4, (2, 3), 3), (4, 2, 3)),
        case("glow-step-emerging", lambda: mn.glow_step(2, (3, 3), 3, "emerging"), (2, 3, 3)),
        case("macow-unit", lambda: mn.macow_unit((2, 3, 3), 3), (2, 3, 3)),
        estimated("i-resnet-dense", lambda: mn.IResNetBlock((4,), 6, 0.9, terms=60), (4,)),
        estimated("i-resnet-conv", lambda: mn.IResNetBlock(image, 3, 0.9, terms=60), image),
        estimated("ffjord-rk4", lambda: mn.FFJORD((3,), 5, "rk4", steps=24), (3,)),
        estimated("ffjord-rk4-conv", lambda: mn.FFJORD((1, 2, 4), 2, "rk4", 12), (1, 2, 4)),
        estimated("ffjord-dopri5", lambda: mn.FFJORD((3,), 5, tolerance=1e-8), (3,), adaptive=1e-6),
    ]
