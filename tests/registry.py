"""Every bijection that the property tests walk: one that is listed here is tested.

Each entry says what it claims to be, and the tests follow the claim. All weights are drawn well
away from 0, since a Jacobian near the identity hides errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from mintnet import (
    FFJORD,
    MAF,
    ActNorm,
    BatchNorm,
    Bijection,
    Chain,
    ChannelPermutation,
    Composed,
    EmergingFactor,
    EntryScaling,
    Flip,
    IResNetBlock,
    Logit,
    MaCowLayer,
    MintLayer,
    MintNet,
    MixtureLayer,
    NICECoupling,
    Planar,
    RealNVPCoupling,
    Reshape,
    Squeeze,
    Sylvester,
    emerging_convolution,
    glow_step,
    iaf,
    invertible_1x1,
    macow_unit,
    paired_mint,
)
from mintnet.calculus import (
    ACTIVATIONS,
    ELU,
    Arctan,
    Exp,
    Function,
    Identity,
    LeakyReLU,
    MaskedConv2d,
    MaskedLinear,
    Sigmoid,
    Softplus,
    Tanh,
)
from mintnet.flows.networks import HalfNetwork
from mintnet.models import (
    Classifier,
    ClassifierConfig,
    Flow,
    MintNetConfig,
    Pixels,
    import_original,
)

FIXTURES = Path(__file__).parent / "fixtures"


@dataclass(frozen=True)
class Case:
    """A bijection and what it claims.

    Attributes:
        name: for the test's name.
        build: makes it, in float64 and evaluation mode, the same one each time.
        input_shape: of one sample.
        triangular: its Jacobian is triangular in its ``ordering``.
        volume_preserving: its log-determinant is 0 everywhere.
        exact: its log-determinant is exact, not estimated.
        tolerance: of log-determinants and of round trips, relative.
        span: where sample inputs are drawn.
        onto: it is a bijection of all reals; otherwise injective only.
        inverted: it is the inverse of something in the calculus: triangular all the same, but it
            has no proof, and its forward map is the one that is solved.
        adaptive: values are only as exact as this, since an integrator chooses its own steps.
    """

    name: str
    build: Callable[[], Bijection]
    input_shape: tuple[int, ...]
    triangular: bool = False
    volume_preserving: bool = False
    exact: bool = True
    tolerance: float = 1e-9
    span: tuple[float, float] = (-2.0, 2.0)
    onto: bool = True
    inverted: bool = False
    adaptive: float = 0.0

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
        unit = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2.0 - 1
        fan_in = parameter[0].numel() if parameter.dim() > 1 and "raw_t" not in name else 1
        scale = 1.0 if "raw_t" in name else gain / math.sqrt(fan_in)
        parameter.copy_((0.4 + 0.6 * unit) * sign * scale)
    return module


def _ready(make: Callable[[], Bijection], seed: int, gain: float) -> Callable[[], Bijection]:
    def build() -> Bijection:
        torch.manual_seed(seed)
        module = away_from_zero(make().double(), seed, gain)
        assert isinstance(module, Bijection)
        return module.eval()

    return build


def _mint(
    channels: int,
    filters: int,
    size: tuple[int, int],
    upper: bool = False,
    activation: str = "elu",
    kernel_size: int = 3,
    t_form: str = "softplus",
    gain: float = 2.0,
) -> Case:
    def make() -> Bijection:
        return MintLayer(channels, filters, size, upper, activation, kernel_size, t_form)

    name = (
        f"mint-{'upper' if upper else 'lower'}-{channels}x{size[0]}x{size[1]}-K{filters}"
        f"-R{kernel_size}-{activation}-{t_form}"
    )
    build = _ready(make, channels + 7 * filters + kernel_size, gain)
    return Case(name, build, (channels, *size), triangular=True)


def _mint_cases() -> list[Case]:
    cases = [
        _mint(2, 3, (3, 4), upper, activation, t_form=form)
        for activation in ACTIVATIONS
        for upper, form in ((False, "softplus"), (True, "absolute"))
    ]
    cases += [
        _mint(channels, filters, size, upper, kernel_size=kernel)
        for channels, filters, size, kernel in (
            (1, 8, (5, 4), 5),
            (3, 1, (3, 3), 1),
            (4, 2, (2, 3), 3),
        )
        for upper in (False, True)
    ]
    cases += [_mint(5, 3, (1, 1)), _mint(2, 2, (1, 6), True, kernel_size=5), _mint(1, 1, (4, 4))]
    return cases


def strictly_earlier(features: int) -> MaskedLinear:
    """A masked dense layer without its diagonal: each entry sees the entries before it alone."""
    layer = MaskedLinear(features)
    layer.mask &= ~torch.eye(features, dtype=torch.bool)
    return layer


class Coupling(Function):
    """An autoregressive layer: ± exp(s(earlier)) · x + m(earlier)."""

    def __init__(self, features: int, sign: float) -> None:
        super().__init__()
        self.log_scale, self.shift = strictly_earlier(features), strictly_earlier(features)
        self.sign = sign

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.sign * (x * Exp()(self.log_scale(x))) + self.shift(x)


def _conv_sum() -> Function:
    """t·x + a bounded wiggle: steep enough to be proved."""
    wiggle = MaskedConv2d(2, 3, 1) @ Tanh() @ MaskedConv2d(2, 1, 3)
    return 9.0 * Identity() + wiggle


def _pixel_sum(upper: bool) -> Function:
    """The same in the pixel order."""

    def conv(into: int, out: int, kernel_size: int) -> Function:
        return MaskedConv2d(2, into, out, kernel_size, upper, order="pixel")

    return 11.0 * Identity() + conv(2, 1, 1) @ Tanh() @ conv(3, 2, 3) @ Tanh() @ conv(1, 3, 3)


def _conv_product() -> Function:
    """A product of bounded factors, dominated by 12·x."""
    first = Sigmoid() @ MaskedConv2d(2, 1, 2, kernel_size=5)
    second = Tanh() @ MaskedConv2d(2, 1, 2, kernel_size=3)
    return 12.0 * Identity() - MaskedConv2d(2, 2, 1, kernel_size=1) @ (first * second)


def _dense_deep(upper: bool) -> Function:
    inner = Tanh() @ MaskedLinear(5, 1, 2, upper)
    deeper = Sigmoid() @ MaskedLinear(5, 2, 3, upper) @ inner
    return 11.0 * Identity() + MaskedLinear(5, 3, 1, upper) @ deeper


def _composed_cases() -> list[Case]:
    def case(
        name: str, make: Callable[[], Function], shape: tuple[int, ...], gain: float = 1.0, **kw
    ) -> Case:
        def build() -> Bijection:
            torch.manual_seed(3)
            function = away_from_zero(make().double(), 5, gain)
            return Composed(function, shape).eval()

        return Case(f"composed-{name}", build, shape, triangular=True, **kw)

    return [
        case("conv-sum", _conv_sum, (2, 3, 3)),
        case("conv-product", _conv_product, (2, 4, 3)),
        case("pixel-lower", lambda: _pixel_sum(False), (2, 3, 3)),
        case("pixel-upper", lambda: _pixel_sum(True), (2, 3, 2)),
        case("dense-lower", lambda: _dense_deep(False), (5,)),
        case("dense-upper", lambda: _dense_deep(True), (5,)),
        case("coupling", lambda: Coupling(5, +1.0), (5,)),
        case("coupling-negative", lambda: Coupling(5, -1.0), (5,)),
        case("decreasing", lambda: -1.0 * (Identity() + LeakyReLU()), (4,)),
        case("softplus", lambda: Softplus() @ Identity(), (6,), onto=False),
        case("arctan", lambda: Arctan() @ (2.0 * Identity()), (2, 2, 2), onto=False),
        case(
            "elu-decreasing",
            lambda: ELU() @ (strictly_earlier(4) - 2.0 * Identity()),
            (4,),
            onto=False,
        ),
        case("softplus-negative", lambda: -1.0 * Softplus(), (3,), onto=False),
        case(
            "scaled-by-tensor",
            lambda: torch.tensor([[[2.0]], [[-3.0]]]) * (Identity() + ELU()),
            (2, 2, 2),
        ),
        case("mint-sum", lambda: _MintSum(), (2, 3, 3), 1.0),
    ]


class _MintSum(Function):
    """The sum of two Mint layers of the same ordering."""

    def __init__(self) -> None:
        super().__init__()
        self.first = MintLayer(2, 2, (3, 3), upper=True)
        self.second = MintLayer(2, 3, (3, 3), upper=True, activation="tanh")

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.first.function(x) + self.second.function(x)


def _batch_norm() -> Bijection:
    norm = BatchNorm(3).double()
    with torch.no_grad():
        norm.scale.copy_(torch.tensor([0.4, -1.7, 2.5]))
        norm.shift.copy_(torch.tensor([-1.0, 0.6, 3.0]))
        norm.mean.copy_(torch.tensor([5.0, -0.7, 1.1]))
        norm.variance.copy_(torch.tensor([0.3, 4.0, 9.0]))
    return norm.eval()


def _act_norm() -> Bijection:
    norm = ActNorm(3).double()
    with torch.no_grad():
        norm.log_scale.copy_(torch.tensor([0.9, -1.3, 0.5]))
        norm.shift.copy_(torch.tensor([-1.0, 0.6, 3.0]))
        norm.is_set.fill_(True)
    return norm.eval()


def _long_chain() -> Bijection:
    return Chain(
        MintLayer(1, 3, (4, 4)),
        Flip(),
        MintLayer(1, 3, (4, 4), upper=True, activation="tanh"),
        Squeeze(2, (1, 4, 4)),
        Chain(MintLayer(4, 2, (2, 2), activation="sigmoid"), ActNorm(4)),
        paired_mint(4, 1, (2, 2), activation="leaky_relu"),
    )


def _pixels() -> Bijection:
    return Chain(Logit(0.05), MintLayer(2, 2, (2, 4)), Squeeze(2, (2, 2, 4)))


def _net() -> Bijection:
    return MintNet(MintNetConfig((1, 4, 4), pairs=(1, 1), filters=(4, 1)))


def _net_colour() -> Bijection:
    config = MintNetConfig((3, 2, 4), (1, 1), (2, 1), "softplus", 5, "absolute")
    return MintNet(config)


def _net_coupled() -> Bijection:
    return MintNet(MintNetConfig((1, 4, 4), pairs=(1, 1), filters=(3, 1), couplings=3))


def tiny_flow(side: int, seed: int) -> Flow:
    """A density model of 17 grey levels that takes milliseconds, float32, away from its start."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        flow = Flow(MintNetConfig((1, side, side), pairs=(1, 1), filters=(3, 1)), 0.05, levels=17)
        with torch.no_grad():
            for parameter in flow.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return flow.eval()


@lru_cache(maxsize=1)
def trained_flow() -> Flow:
    """The density model trained on MNIST, from the checkpoint among the fixtures."""
    return import_original(FIXTURES / "trained_mnist.pth")


HARD = (6, 7)
"""Places in `trained_flow().net.layers()` where Algorithm 1 with α = 1 does not converge."""


def trained_layer(index: int, size: tuple[int, int] | None = None) -> MintLayer:
    """A trained layer in float64; with ``size`` its weights on a corner of its image."""
    whole = trained_flow().net.layers()[index]
    _, height, width = whole.event_shape
    height, width = size or (height, width)
    layer = MintLayer(
        whole.channels,
        whole.filters,
        (height, width),
        whole.ordering.upper,
        whole.activation_name,
        whole.kernel_size,
        whole.t_form,
    ).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            source = getattr(whole, name)
            if name == "raw_t":  # from the middle of the image, where t has been trained most
                top, left = (source.shape[1] - height) // 2, (source.shape[2] - width) // 2
                source = source[:, top : top + height, left : left + width]
            parameter.copy_(source)
    return layer.eval()


def _trained(index: int, size: tuple[int, int]) -> Case:
    channels = (1, 4, 16)[(index >= 12) + (index >= 24)]
    return Case(
        f"trained-{index}",
        lambda: trained_layer(index, size),
        (channels, *size),
        triangular=True,
        span=(-12.0, 12.0) if index < 12 else (-4.0, 4.0),
    )


def _classifier_chain() -> Bijection:
    """What stands before the pooling of a classifier, with running statistics of its own."""
    config = ClassifierConfig(width=3, pairs=(1, 1), filters=(2, 1))
    model = Classifier(config, Pixels((2, 4, 4)))
    away_from_zero(model.double(), 11, 1.5)
    for number, norm in enumerate(m for m in model.modules() if isinstance(m, BatchNorm)):
        norm.mean.add_(0.1 * (number + 1))
        norm.variance.mul_(0.5 + 0.4 * number)
    return model.eval().chain


def _members_of_f() -> list[Case]:
    """Layers of other flows that are triangular in a stated ordering."""

    def case(name: str, make: Callable[[], Bijection], shape: tuple[int, ...], **kw) -> Case:
        return Case(name, _ready(make, len(name), 1.5), shape, triangular=True, **kw)

    image, vector = (2, 3, 4), (6,)
    cases = []
    for partition in ("checkerboard", "channel"):
        for upper, shape in ((False, image), (True, image), (upper_of(partition), vector)):
            end = f"{partition}-{'upper' if upper else 'lower'}-{len(shape)}d"
            cases += [
                case(
                    f"nice-{end}",
                    lambda s=shape, p=partition, u=upper: NICECoupling(s, p, u, hidden=3),
                    shape,
                    volume_preserving=True,
                ),
                case(
                    f"real-nvp-{end}",
                    lambda s=shape, p=partition, u=upper: RealNVPCoupling(s, p, u, hidden=3),
                    shape,
                ),
            ]
    cases += [
        case(
            f"real-nvp-{scale}",
            lambda scale=scale: RealNVPCoupling((3, 3, 3), "channel", hidden=3, scale=scale),
            (3, 3, 3),
        )
        for scale in ("exp", "softplus", "sigmoid")
    ]
    cases += [
        case(
            f"real-nvp-centred-{'upper' if upper else 'lower'}",
            lambda upper=upper: RealNVPCoupling(
                (4, 3, 3), "channel", upper, HalfNetwork((4, 3, 3), 3, upper), centred=True
            ),
            (4, 3, 3),
        )
        for upper in (False, True)
    ]
    cases += [
        case(f"maf-{way}-{len(shape)}d-{layers}", make, shape)
        for upper, way in ((False, "lower"), (True, "upper"))
        for shape, filters, layers in ((vector, 2, 1), (vector, 1, 3), (image, 2, 2))
        for make in (
            lambda s=shape, k=filters, n=layers, u=upper: MAF(s, k, n, u, activation="tanh"),
        )
    ]
    cases += [
        case("maf-elu-exp", lambda: MAF((5,), 2, scale="exp"), (5,)),
        case(
            "maf-wide-kernel", lambda: MAF((1, 4, 5), 2, kernel_size=5, scale="sigmoid"), (1, 4, 5)
        ),
    ]
    cases += [
        case(
            f"emerging-{'upper' if upper else 'lower'}-R{kernel}-{'unit' if unit else 'scaled'}",
            lambda u=upper, k=kernel, one=unit: _signed(EmergingFactor(3, (3, 4), k, u, one)),
            (3, 3, 4),
            volume_preserving=unit,
        )
        for upper, kernel, unit in (
            (False, 3, False),
            (True, 3, False),
            (False, 5, True),
            (True, 1, False),
            (False, 1, True),
        )
    ]
    cases += [
        case(
            f"macow-{way}",
            lambda way=way, breadth=breadth: MaCowLayer(image, way, 3, breadth=breadth),
            image,
        )
        for way, breadth in (("down", 5), ("up", 3), ("right", 1), ("left", 3))
    ]
    cases += [
        case("iaf-dense", lambda: iaf(vector, 2), vector, inverted=True),
        case("iaf-conv", lambda: iaf((2, 2, 3), 2, upper=True), (2, 2, 3), inverted=True),
    ]
    return cases


def upper_of(partition: str) -> bool:
    return partition == "channel"


def _signed(factor: EmergingFactor) -> EmergingFactor:
    """A factor whose slopes have both signs."""
    factor.sign[1] = -1.0
    return factor


def _outside_f() -> list[Case]:
    """Chains of such layers, and layers whose Jacobian is triangular in no ordering."""

    def case(name: str, make: Callable[[], Bijection], shape: tuple[int, ...], **kw) -> Case:
        return Case(name, _ready(make, len(name), 1.5), shape, **kw)

    order = torch.tensor([2, 0, 1])
    estimated = {"exact": False, "tolerance": 2e-4}
    cases = [
        case("reshape", lambda: Reshape((2, 2, 3), (12,)), (2, 2, 3), volume_preserving=True),
        case(
            "channel-permutation",
            lambda: ChannelPermutation(order, (3, 2, 2)),
            (3, 2, 2),
            volume_preserving=True,
        ),
        case("entry-scaling", lambda: EntryScaling((2, 3)), (2, 3)),
        case("invertible-1x1", lambda: invertible_1x1(4, (2, 3)), (4, 2, 3)),
        case("emerging", lambda: emerging_convolution(2, (4, 3)), (2, 4, 3)),
        case("glow-step", lambda: glow_step(4, (2, 3), 3), (4, 2, 3)),
        case("glow-step-emerging", lambda: glow_step(2, (3, 3), 3, "emerging"), (2, 3, 3)),
        case("macow-unit", lambda: macow_unit((2, 3, 3), 3), (2, 3, 3)),
        case("planar", lambda: Planar(5), (5,), span=(-0.5, 0.5)),
        case("sylvester", lambda: Sylvester(6, 3), (6,)),
        case("sylvester-full", lambda: Sylvester(4, 4), (4,), span=(-0.2, 0.2)),
        case("i-resnet-dense", lambda: IResNetBlock((4,), 6, 0.9, terms=60), (4,), **estimated),
        case(
            "i-resnet-conv",
            lambda: IResNetBlock((1, 3, 3), 3, 0.9, terms=60),
            (1, 3, 3),
            **estimated,
        ),
        case("ffjord-rk4", lambda: FFJORD((3,), 5, "rk4", steps=24), (3,), **estimated),
        case("ffjord-rk4-conv", lambda: FFJORD((1, 3, 3), 2, "rk4", 24), (1, 3, 3), **estimated),
    ]
    make = lambda: FFJORD((3,), 5, tolerance=1e-8)  # noqa: E731
    return [*cases, case("ffjord-dopri5", make, (3,), adaptive=1e-6, **estimated)]


def _mixture(name: str, channels: int, upper: bool) -> Case:
    def make() -> MixtureLayer:
        return MixtureLayer(channels, 3, (3, 3), blocks=2, components=3, upper=upper)

    return Case(f"mixture-{name}", _ready(make, 3, 1.5), (channels, 3, 3), triangular=True)


def _cases() -> list[Case]:
    mint, composed = _mint_cases(), _composed_cases()
    trained = [_trained(i, (6, 6)) for i in (0, *HARD, 8)]
    trained += [_trained(15, (4, 4)), _trained(36, (2, 2)), _trained(39, (2, 2))]
    others = [
        Case(
            "squeeze-2", lambda: Squeeze(2, (3, 4, 6)).double(), (3, 4, 6), volume_preserving=True
        ),
        Case(
            "squeeze-3", lambda: Squeeze(3, (2, 6, 3)).double(), (2, 6, 3), volume_preserving=True
        ),
        Case("flip-image", lambda: Flip(), (2, 3, 2), volume_preserving=True),
        Case("flip-vector", lambda: Flip(), (7,), volume_preserving=True),
        Case("batch-norm", _batch_norm, (3, 2, 3)),
        Case("act-norm", _act_norm, (3, 2, 3)),
        Case("logit-1e-6", lambda: Logit(1e-6), (1, 3, 3), span=(0.0, 1.0)),
        Case("logit-centred", lambda: Logit(0.01, centre=-4.0), (1, 2, 3), span=(0.0, 1.0)),
        Case("logit-0.05", lambda: Logit(0.05), (2, 2, 3), span=(0.0, 1.0)),
        _mixture("grey", 1, False),
        _mixture("colour", 3, False),
        _mixture("upper", 2, True),
        Case("paired", _ready(lambda: paired_mint(2, 2, (3, 3)), 2, 2.0), (2, 3, 3)),
        Case("chain", _ready(_long_chain, 4, 1.5), (1, 4, 4)),
        Case(
            "chain-of-permutations",
            lambda: Chain(Flip(), Squeeze(2, (1, 4, 4))),
            (1, 4, 4),
            volume_preserving=True,
        ),
        Case("chain-from-pixels", _ready(_pixels, 6, 1.5), (2, 2, 4), span=(0.05, 0.95)),
        Case("mintnet-grey", _ready(_net, 8, 1.5), (1, 4, 4)),
        Case("mintnet-colour", _ready(_net_colour, 9, 1.5), (3, 2, 4)),
        Case("mintnet-coupled", _ready(_net_coupled, 10, 1.5), (1, 4, 4)),
        Case("classifier", _classifier_chain, (3, 4, 4)),
    ]
    return mint + composed + trained + others + _members_of_f() + _outside_f()


CASES = _cases()
TRIANGULAR = [case for case in CASES if case.triangular and not case.inverted]
SMALL = [case for case in CASES if not case.name.startswith("trained")]


def jacobian(function: Callable[[Tensor], Tensor], x: Tensor, row_by_row: bool = False) -> Tensor:
    """The dense Jacobian of one sample at a time, (batch, D, D), by autograd."""
    rows = []
    for sample in x:
        j = torch.autograd.functional.jacobian(
            lambda s: function(s[None])[0].flatten(), sample, vectorize=not row_by_row
        )
        rows.append(j.reshape(j.shape[0], -1))
    return torch.stack(rows).detach()
