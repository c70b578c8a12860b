"""Every bijection that the property tests walk: one that is listed here is tested.

Each entry says what it claims to be, and the tests follow the claim. All weights are drawn well
away from 0, since a Jacobian near the identity hides errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import mintnet as mn
from mintnet import calculus as ca
from mintnet import models
from mintnet.bijections import AnalyticBijection, TriangularBijection
from registry_flows import Case, _members_of_f, _outside_f, _ready, away_from_zero

FIXTURES = Path(__file__).parent / "fixtures"


def _mint_cases() -> list[Case]:
    def case(c, k, size, upper=False, activation="elu", kernel=3, t_form="softplus") -> Case:
        name = f"mint-{'upper' if upper else 'lower'}-{c}x{size[0]}x{size[1]}-K{k}-R{kernel}"
        make = partial(mn.MintLayer, c, k, size, upper, activation, kernel, t_form)
        build = _ready(make, c + 7 * k + kernel, 2.0)
        return Case(f"{name}-{activation}-{t_form}", build, (c, *size), triangular=True)

    cases = [
        case(2, 3, (3, 4), upper, activation, t_form=form)
        for activation in ca.ACTIVATIONS
        for upper, form in ((False, "softplus"), (True, "absolute"))
    ]
    shapes = ((1, 8, (5, 4), 5), (3, 1, (3, 3), 1), (4, 2, (2, 3), 3))
    cases += [case(*some, upper, kernel=r) for *some, r in shapes for upper in (False, True)]
    return [*cases, case(5, 3, (1, 1)), case(2, 2, (1, 6), True, kernel=5), case(1, 1, (4, 4))]


strictly_earlier = partial(ca.MaskedLinear, strict=True)
"""A masked dense layer without its diagonal: each entry sees the entries before it alone."""


class Coupling(ca.Function):
    """An autoregressive layer: ± exp(s(earlier)) · x + m(earlier)."""

    def __init__(self, features: int, sign: float) -> None:
        super().__init__()
        self.log_scale, self.shift = strictly_earlier(features), strictly_earlier(features)
        self.sign = sign

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.sign * (x * ca.Exp()(self.log_scale(x))) + self.shift(x)


def _conv_sum() -> ca.Function:
    """t·x + a bounded wiggle: steep enough to be proved."""
    return 9.0 * ca.Identity() + ca.MaskedConv2d(2, 3, 1) @ ca.Tanh() @ ca.MaskedConv2d(2, 1, 3)


def _pixel_sum(upper: bool) -> ca.Function:
    """The same in the pixel order."""
    conv, h = partial(ca.MaskedConv2d, 2, upper=upper, order="pixel"), ca.Tanh()
    return 11.0 * ca.Identity() + conv(2, 1, 1) @ h @ conv(3, 2, 3) @ h @ conv(1, 3, 3)


def _conv_product() -> ca.Function:
    """A product of bounded factors, dominated by 12·x."""
    first = ca.Sigmoid() @ ca.MaskedConv2d(2, 1, 2, kernel_size=5)
    second = ca.Tanh() @ ca.MaskedConv2d(2, 1, 2, kernel_size=3)
    return 12.0 * ca.Identity() - ca.MaskedConv2d(2, 2, 1, kernel_size=1) @ (first * second)


def _dense_deep(upper: bool) -> ca.Function:
    inner = ca.Tanh() @ ca.MaskedLinear(5, 1, 2, upper)
    deeper = ca.Sigmoid() @ ca.MaskedLinear(5, 2, 3, upper) @ inner
    return 11.0 * ca.Identity() + ca.MaskedLinear(5, 3, 1, upper) @ deeper


def _composed_cases() -> list[Case]:
    def case(name: str, make: Callable[[], ca.Function], shape: tuple[int, ...], **claims) -> Case:
        def build() -> mn.Bijection:
            torch.manual_seed(3)
            return mn.Composed(away_from_zero(make().double(), 5), shape).eval()

        return Case(f"composed-{name}", build, shape, triangular=True, **claims)

    x, signed = ca.Identity, torch.tensor([[[2.0]], [[-3.0]]])
    return [
        case("conv-sum", _conv_sum, (2, 3, 3)),
        case("conv-product", _conv_product, (2, 4, 3)),
        case("pixel-lower", lambda: _pixel_sum(False), (2, 3, 3)),
        case("pixel-upper", lambda: _pixel_sum(True), (2, 3, 2)),
        case("dense-lower", lambda: _dense_deep(False), (5,)),
        case("dense-upper", lambda: _dense_deep(True), (5,)),
        case("coupling", lambda: Coupling(5, +1.0), (5,)),
        case("coupling-negative", lambda: Coupling(5, -1.0), (5,)),
        case("decreasing", lambda: -1.0 * (x() + ca.LeakyReLU()), (4,)),
        case("softplus", lambda: ca.Softplus() @ x(), (6,), onto=False),
        case("arctan", lambda: ca.Arctan() @ (2.0 * x()), (2, 2, 2), onto=False),
        case("elu", lambda: ca.ELU() @ (strictly_earlier(4) - 2.0 * x()), (4,), onto=False),
        case("softplus-negative", lambda: -1.0 * ca.Softplus(), (3,), onto=False),
        case("scaled-by-tensor", lambda: signed * (x() + ca.ELU()), (2, 2, 2)),
        case("mint-sum", _MintSum, (2, 3, 3)),
    ]


class _MintSum(ca.Function):
    """The sum of two Mint layers of the same ordering."""

    def __init__(self) -> None:
        super().__init__()
        self.first = mn.MintLayer(2, 2, (3, 3), upper=True)
        self.second = mn.MintLayer(2, 3, (3, 3), upper=True, activation="tanh")

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.first.function(x) + self.second.function(x)


class Sinh(AnalyticBijection):
    """y = sinh x: all that a new bijection with a known inverse needs."""

    event_shape = (4,)

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sinh(), x.cosh().log().flatten(1).sum(1)

    def invert(self, z: Tensor) -> Tensor:
        return z.asinh()


class Ripple(TriangularBijection):
    """y = 4x + tanh(W ⊛ x) / 2: all that a new triangular bijection needs."""

    def __init__(self) -> None:
        super().__init__()
        self.event_shape, self.conv = (2, 3, 3), ca.MaskedConv2d(2)

    def function(self, x: ca.Quantity) -> ca.Quantity:
        return 4.0 * x + 0.5 * ca.Tanh()(self.conv(x))


@torch.no_grad()
def _norm(kind: type[mn.BatchNorm] | type[mn.ActNorm]) -> mn.Bijection:
    norm = kind(3).double()
    if isinstance(norm, mn.BatchNorm):
        norm.scale.copy_(torch.tensor([0.4, -1.7, 2.5]))
        norm.mean.copy_(torch.tensor([5.0, -0.7, 1.1]))
        norm.variance.copy_(torch.tensor([0.3, 4.0, 9.0]))
    else:
        norm.log_scale.copy_(torch.tensor([0.9, -1.3, 0.5]))
        norm.is_set.fill_(True)
    norm.shift.copy_(torch.tensor([-1.0, 0.6, 3.0]))
    return norm.eval()


def _long_chain() -> mn.Bijection:
    return mn.Chain(
        mn.MintLayer(1, 3, (4, 4)),
        mn.Flip(),
        mn.MintLayer(1, 3, (4, 4), upper=True, activation="tanh"),
        mn.Squeeze(2, (1, 4, 4)),
        mn.Chain(mn.MintLayer(4, 2, (2, 2), activation="sigmoid"), mn.ActNorm(4)),
        mn.paired_mint(4, 1, (2, 2), activation="leaky_relu"),
    )


def _pixels() -> mn.Bijection:
    return mn.Chain(mn.Logit(0.05), mn.MintLayer(2, 2, (2, 4)), mn.Squeeze(2, (2, 2, 4)))


def _net(*arguments, **given) -> Callable[[], mn.Bijection]:
    return lambda: mn.MintNet(models.MintNetConfig(*arguments, **given))


def tiny_flow(side: int, seed: int) -> models.Flow:
    """A density model of 17 grey levels that takes milliseconds, float32, away from its start."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = models.MintNetConfig((1, side, side), pairs=(1, 1), filters=(3, 1))
        flow = models.Flow(config, 0.05, levels=17)
        with torch.no_grad():
            for parameter in flow.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return flow.eval()


def normal_mint(
    c: int, k: int, size: tuple[int, int], upper: bool = False, seed: int = 0, std: float = 0.3
) -> mn.MintLayer:
    """A Mint layer in float32 and evaluation mode with normal weights."""
    torch.manual_seed(seed)
    layer = mn.MintLayer(c, k, size, upper)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=std)
    return layer.eval()


@lru_cache(maxsize=1)
def trained_flow() -> models.Flow:
    """The density model trained on MNIST, from the checkpoint among the fixtures."""
    return models.import_original(FIXTURES / "trained_mnist.pth")


HARD = (6, 7)
"""Places in `trained_flow().net.layers()` where Algorithm 1 with α = 1 does not converge."""


def trained_layer(index: int, size: tuple[int, int] | None = None) -> mn.MintLayer:
    """A trained layer in float64; with ``size`` its weights on a corner of its image."""
    whole = trained_flow().net.layers()[index]
    _, height, width = whole.event_shape
    height, width = size or (height, width)
    form = whole.ordering.upper, whole.activation_name, whole.kernel_size, whole.t_form
    layer = mn.MintLayer(whole.channels, whole.filters, (height, width), *form).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            source = getattr(whole, name)
            if name == "raw_t":  # from the middle of the image, where t has been trained most
                top, left = (source.shape[1] - height) // 2, (source.shape[2] - width) // 2
                source = source[:, top : top + height, left : left + width]
            parameter.copy_(source)
    return layer.eval()


@torch.no_grad()
def trained_places(indices: tuple[int, ...]) -> list[tuple[mn.MintLayer, Tensor, Tensor]]:
    """Trained layers with what two images give them, and what they make of it, in float32."""
    layers, found = trained_flow().net.layers(), []
    with np.load(FIXTURES / "trained_mnist.npz") as arrays:
        x = torch.from_numpy(arrays["x"])[:2].float()
    for part in trained_flow().net.chain.leaves():
        before, x = x, part.transform(x)[0]
        if any(part is layers[i] for i in indices):
            found.append((part, before, x))
    return found


def idx_bytes(array: np.ndarray) -> bytes:
    """An array as a file of MNIST holds it."""
    shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


def _trained(index: int, size: tuple[int, int]) -> Case:
    shape = ((1, 4, 16)[(index >= 12) + (index >= 24)], *size)
    span = (-12.0, 12.0) if index < 12 else (-4.0, 4.0)
    build = partial(trained_layer, index, size)
    return Case(f"trained-{index}", build, shape, triangular=True, span=span)


def small_classifier(
    elu: bool = True, channels: int = 2, side: int = 8, width: int = 4
) -> models.Classifier:
    """In float64 and evaluation mode, for 5 classes, with running statistics of its own."""
    torch.manual_seed(0)
    config = models.ClassifierConfig(width, (1, 1), (2, 1), elu=elu)
    pixels = models.Pixels((channels, side, side), 256, (0.4,), (0.3,))
    model = away_from_zero(models.Classifier(config, pixels, classes=5).double(), 0, gain=1.2)
    with torch.no_grad():
        for norm in (m for m in model.modules() if isinstance(m, mn.BatchNorm)):
            norm.mean.uniform_(-0.5, 0.5)
            norm.variance.uniform_(0.3, 2.0)
            norm.scale.abs_()
    return model.eval()


def _mixture(name: str, channels: int, upper: bool, size=(3, 3), **more: object) -> Case:
    make = partial(mn.MixtureLayer, channels, 3, size, 2, 3, upper, **more)
    return Case(f"mixture-{name}", _ready(make, 3, 1.5), (channels, *size), triangular=True)


def _cases() -> list[Case]:
    trained = [_trained(i, (6, 6)) for i in (0, *HARD, 8)]
    trained += [_trained(15, (4, 4)), _trained(36, (2, 2)), _trained(39, (2, 2))]
    moved, unit = partial(Case, volume_preserving=True), partial(Case, span=(0.0, 1.0))
    both = partial(mn.Chain, mn.Flip(), mn.Squeeze(2, (1, 4, 4)))
    grey, coupled = (_net((1, 4, 4), (1, 1), (k, 1), couplings=c) for k, c in ((4, 0), (3, 3)))
    colour = _net((3, 2, 4), (1, 1), (2, 1), "softplus", 5, "absolute")
    others = [
        moved("squeeze-2", lambda: mn.Squeeze(2, (3, 4, 6)).double(), (3, 4, 6)),
        moved("squeeze-3", lambda: mn.Squeeze(3, (2, 6, 3)).double(), (2, 6, 3)),
        moved("flip-image", mn.Flip, (2, 3, 2)),
        moved("flip-mirror", lambda: mn.Flip((-1,)), (2, 3, 2)),
        moved("flip-vector", mn.Flip, (7,)),
        moved("unchanged", mn.Unchanged, (1, 2, 3)),
        moved("chain-of-permutations", both, (1, 4, 4)),
        Case("batch-norm", lambda: _norm(mn.BatchNorm), (3, 2, 3)),
        Case("act-norm", lambda: _norm(mn.ActNorm), (3, 2, 3)),
        Case("act-norm-vector", lambda: _norm(mn.ActNorm), (3,)),
        unit("logit-1e-6", lambda: mn.Logit(1e-6), (1, 3, 3)),
        unit("logit-centred", lambda: mn.Logit(0.01, centre=-4.0), (1, 2, 3)),
        unit("logit-0.05", lambda: mn.Logit(0.05), (2, 2, 3)),
        unit("rescale", mn.Rescale, (1, 2, 3)),
        unit("equalize", _ready(lambda: mn.Equalize(5), 1, 1.0), (1, 2, 3)),
        _mixture("grey", 1, False),
        _mixture("colour", 3, False),
        _mixture("upper", 2, True),
        _mixture("pixel", 3, False, order="pixel"),
        _mixture("pixel-upper", 2, True, order="pixel"),
        _mixture("levels", 2, False, levels=5),
        _mixture("levels-pixel", 3, True, order="pixel", levels=4),
        _mixture("vector", 6, False, ()),
        _mixture("vector-upper", 5, True, ()),
        Case("paired", _ready(lambda: mn.paired_mint(2, 2, (3, 3)), 2, 2.0), (2, 3, 3)),
        Case("chain", _ready(_long_chain, 4, 1.5), (1, 4, 4)),
        Case("chain-from-pixels", _ready(_pixels, 6, 1.5), (2, 2, 4), span=(0.05, 0.95)),
        Case("mintnet-grey", _ready(grey, 8, 1.5), (1, 4, 4)),
        Case("mintnet-colour", _ready(colour, 9, 1.5), (3, 2, 4)),
        Case("mintnet-coupled", _ready(coupled, 10, 1.5), (1, 4, 4)),
        Case("classifier", lambda: small_classifier(side=4, width=3).chain, (3, 4, 4)),
        Case("new-analytic", lambda: Sinh().eval(), (4,)),
        Case("new-triangular", _ready(Ripple, 0, 1.0), (2, 3, 3), triangular=True),
    ]
    return _mint_cases() + _composed_cases() + trained + others + _members_of_f() + _outside_f()


CASES = _cases()
TRIANGULAR = [case for case in CASES if case.triangular and not case.inverted]
SMALL = [case for case in CASES if not case.name.startswith("trained")]


def along_a_direction(
    value: Callable[[], Tensor], inputs: list[Tensor], h: float
) -> tuple[float, float]:
    """The derivative along a random direction of the inputs: by autograd, and by differences."""
    direction, ends = [torch.randn_like(part) for part in inputs], []
    pairs = zip(torch.autograd.grad(value(), inputs, allow_unused=True), direction, strict=True)
    expected = sum(float((g * d).sum()) for g, d in pairs if g is not None)
    with torch.no_grad():
        for amount in (h, -2 * h):
            for part, d in zip(inputs, direction, strict=True):
                part.add_(amount * d)
            ends.append(float(value()))
    return expected, (ends[0] - ends[1]) / (2 * h)


def jacobian(function: Callable[[Tensor], Tensor], x: Tensor, row_by_row: bool = False) -> Tensor:
    """The dense Jacobian of one sample at a time, (batch, D, D), by autograd."""
    rows = []
    for sample in x:
        j = torch.autograd.functional.jacobian(
            lambda s: function(s[None])[0].flatten(), sample, vectorize=not row_by_row
        )
        rows.append(j.reshape(j.shape[0], -1))
    return torch.stack(rows).detach()
