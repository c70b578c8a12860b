"""What must not be proved, proofs that must not outlive a change, and slopes beyond float32."""

import math
from array import array
from collections import deque
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import mintnet as mn
from mintnet import Composed, NotProvedError, certify
from mintnet import calculus as ca
from mintnet.calculus.interval import Interval
from registry import strictly_earlier

NAN, INF = float("nan"), float("inf")
x = ca.Identity()


class Buffered(nn.Module):
    """A network with a buffer, a tensor in a list, and one in a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.zeros(4))
        self.listed, hidden = [torch.ones(4)], torch.ones(4)
        self.read, self.hidden = (lambda: hidden), hidden

    def forward(self, data):
        return data * self.listed[0] * self.read() + self.offset


READS = {
    "masked linear": (lambda: Composed(9.0 * x + ca.Tanh() @ ca.MaskedLinear(3), (3,)), {}),
    "masked conv": (lambda: Composed(9.0 * x + ca.Tanh() @ ca.MaskedConv2d(2), (2, 2, 2)), {}),
    "scale": (lambda: Composed(torch.ones(3) * x, (3,)), {}),
    "shift": (lambda: Composed(x + torch.ones(3), (3,)), {}),
    "mint": (lambda: mn.MintLayer(2, 2, (2, 2)), {}),
    "mixture": (lambda: mn.MixtureLayer(2, 2, (2, 2), blocks=1, components=2), {}),
    "maf": (lambda: mn.MAF((3,)), {}),
    "macow": (lambda: mn.MaCowLayer((1, 2, 2), hidden=2), {}),
    "real nvp": (lambda: mn.RealNVPCoupling((4,), hidden=2), {}),
    "emerging": (lambda: mn.EmergingFactor(2, (2, 2)), {}),
    "buffered": (
        lambda: mn.NICECoupling((4,), "channel", network=Buffered()),
        {
            "listed": lambda f: f.conditioner.network.listed[0],
            "closure": lambda f: f.conditioner.network.hidden,
        },
    ),
}


@pytest.mark.parametrize("number", [NAN, INF])
@pytest.mark.parametrize("name", READS)
def test_everything_that_is_read_must_be_finite(name: str, number: float) -> None:
    make, more = READS[name]
    layer = make().eval()
    tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    tensors |= {place: find(layer) for place, find in more.items()}
    for place, tensor in tensors.items():
        if not tensor.is_floating_point() or place == "first":
            continue
        kept = tensor.detach().clone()
        assert layer.certify().onto
        tensor.data.view(-1)[-1] = number
        proof = layer.certify()
        assert not proof.injective and "NaN or infinite" in proof.message, place
        tensor.data.copy_(kept)


def _in_list() -> tuple[Composed, list]:
    held = [torch.tensor(2.0)]
    return Composed(lambda x: held[0] * x + ca.Tanh()(x), (2,)), held


def _in_module() -> tuple[Composed, ca.MaskedLinear]:
    linear = ca.MaskedLinear(2)
    linear.weight = nn.Parameter(torch.eye(2))
    return Composed(lambda x: x + ca.Tanh()(linear(x)), (2,)), linear


def _in_function() -> tuple[Composed, ca.Function]:
    function = 2.0 * x + ca.Tanh() @ x
    return Composed(function, (2,)), function


def _by_vector(linear: ca.MaskedLinear) -> None:
    vector = torch.cat([-5 * torch.eye(2).flatten(), torch.zeros(2)])
    nn.utils.vector_to_parameters(vector, linear.parameters())


BAD = -5 * torch.eye(2)
CHANGES = {
    "in place": (_in_module, lambda m: m.weight.detach().copy_(BAD)),
    "data": (_in_module, lambda m: setattr(m.weight, "data", BAD)),
    "data in place": (_in_module, lambda m: m.weight.data.copy_(BAD)),
    "replaced": (_in_module, lambda m: setattr(m, "weight", nn.Parameter(BAD))),
    "load_state_dict": (_in_module, lambda m: m.load_state_dict({"weight": BAD}, False)),
    "vector_to_parameters": (_in_module, _by_vector),
    "a factor": (_in_function, lambda f: setattr(f.first, "factor", -1.0)),
    "a part": (_in_function, lambda f: setattr(f, "first", ca.Identity() * -1.0)),
    "a tensor in a list": (_in_list, lambda held: held[0].fill_(-1.0)),
    "a list": (_in_list, lambda held: held.__setitem__(0, torch.tensor(-1.0))),
}


@pytest.mark.parametrize("how", CHANGES)
def test_no_proof_outlives_a_change(how: str) -> None:
    make, change = CHANGES[how]
    bijection, part = make()
    at = torch.zeros(1, 2)
    bijection.eval()(at)
    change(part)
    for use in (bijection, bijection.inverse):
        with pytest.raises(NotProvedError):
            use(at)


class Slots:
    __slots__ = ("slope",)


HELD, BAG, QUEUE, ROWS = Slots(), SimpleNamespace(slope=2.0), deque([2.0]), array("d", [2.0])
HELD.slope = 2.0


class Line(ca.Elementwise):
    """k v, with k read anew each time."""

    def __init__(self, read) -> None:
        super().__init__()
        self.read = read

    def value_and_slope(self, v):
        return self.read() * v, torch.full_like(v, self.read())


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (lambda: HELD.slope, lambda: setattr(HELD, "slope", -1.0)),
        (lambda: BAG.slope, lambda: setattr(BAG, "slope", -1.0)),
        (lambda: QUEUE[0], lambda: QUEUE.appendleft(-1.0)),
        (lambda: sum(ROWS[0] for _ in "a"), lambda: ROWS.__setitem__(0, -1.0)),
    ],
    ids=["slots", "global object", "deque", "array, in a generator"],
)
def test_no_proof_outlives_a_change_of_what_functions_read(read, change) -> None:
    bijection = Composed(x + Line(read), (1,)).eval()
    change()
    with pytest.raises(NotProvedError):
        bijection.inverse(torch.zeros(1, 1))


def test_a_coupling_is_proved_again_when_its_network_is_replaced() -> None:
    layer = mn.NICECoupling((4,), "channel").eval()
    layer(torch.zeros(1, 4))
    layer.conditioner = Reads("own")
    with pytest.raises(ValueError, match="not earlier"):
        layer(torch.zeros(1, 4))


class Reads(ca.Conditioner):
    """A network of its own or later entries, in random numbers, or of another shape."""

    ordering, outputs = ca.LOWER, 1

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.training = what, False

    def forward(self, data):
        shifted = torch.cat([torch.zeros_like(data[:, :1]), data[:, :-1]], 1)
        return {
            "own": (data.relu(),),
            "rounded": (data.round(),),
            "far": (data.detach() > 5,),
            "later": (shifted.flip(1),),
            "noise": (shifted + torch.randn_like(data),),
            "shape": (shifted[:, 1:],),
            "count": (shifted, shifted),
            "levels": (shifted,),
            "nothing": None,
        }[self.what]

    def levels(self, shape):
        levels = torch.arange(shape[0])
        return levels.flip(0) if self.what == "levels" else levels


@pytest.mark.parametrize(
    ("what", "word"),
    [
        ("own", "not earlier"),
        ("rounded", "not earlier"),
        ("far", "not earlier"),
        ("later", "not earlier"),
        ("noise", "another one each time"),
        ("shape", r"expected that .* is 1 tensors"),
        ("nothing", r"expected that .* is 1 tensors"),
        ("count", r"expected that .* is 1 tensors"),
        ("levels", "do not rise"),
    ],
)
def test_networks_that_are_not_of_earlier_entries(what: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        certify(lambda x: x + x.conditioned(Reads(what))[0], (4,))


MISTAKES = {
    "no shape": (lambda: certify(x, ()), "shape of one sample"),
    "a number": (lambda: certify(x, 3), "shape of one sample"),
    "a sparse factor": (lambda: certify(x * torch.ones(2).to_sparse(), (2,)), "dense"),
    "a counter": (lambda: certify(Line(count(1).__next__), (2,)), "each time"),
    "a generator": (lambda: certify(Line((n for n in "ab").__next__), (2,)), "generator"),
    "no entries": (lambda: certify(x, (0,)), "shape of one sample"),
    "chance": (lambda: certify(lambda x: torch.rand(()) * x, (2,)), "each time"),
    "a complex factor": (lambda: certify(x * torch.tensor(1 + 2j), (2,)), "real"),
    "complex weights": (lambda: certify(ca.MaskedLinear(2).to(torch.complex64), (2,)), "complex"),
    "no quantity": (lambda: certify(lambda x: 3.0, (2,)), "gives back a quantity"),
    "copies": (lambda: certify(x + ca.MaskedLinear(2, 1, 2), (2,)), "cannot add"),
}


@pytest.mark.filterwarnings("ignore:Casting complex:UserWarning", "ignore:Complex modules")
@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_proved_is_told(name: str) -> None:
    ask, word = MISTAKES[name]
    with pytest.raises(ValueError, match=word):
        ask()


def test_a_slope_that_a_parameter_turns_around_has_no_sign() -> None:
    bent = ca.LeakyReLU()
    assert certify(bent, (1,)).onto
    bent.negative_slope = -1.0
    assert not certify(bent, (1,)).injective
    assert not certify(Line(lambda: INF), (1,)).injective


@pytest.mark.parametrize("flush", [False, True])
def test_tiny_numbers_are_rounded_outwards(flush: bool) -> None:
    small = (ca.MaskedLinear(1, bias=False).double() for _ in range(2))
    first, second = (layer.requires_grad_(False) for layer in small)
    first.weight.fill_(1e-200), second.weight.fill_(-1e-200)
    torch.set_flush_denormal(flush)
    try:
        proof = certify(second @ first, (1,))
        tail = certify(ca.Exp() @ (0.5 * ca.Tanh() - 744.0), (1,))
    finally:
        torch.set_flush_denormal(False)
    assert proof.low.item() < 0 == proof.high.item() and proof.sign.item() == -1
    assert tail.low.item() == 0 < tail.high.item() and tail.injective and not tail.onto


def test_subnormal_function_values_are_moved_outwards() -> None:
    at = torch.tensor([-744.0], dtype=torch.float64)
    found, exact = ca.Exp().value_range(Interval.of(at, at)), 9.881312916824931e-324
    assert found.low.item() < exact < found.high.item()


ENDS = {
    "exp": (ca.Exp(), [80.0, -120.0], -40.0),
    "sigmoid": (ca.Sigmoid(), [-110.0, 110.0], -220.0),
    "tanh": (ca.Tanh(), [60.0, -60.0], 2 * math.log(4) - 240.0),
    "softplus": (ca.Softplus(), [-110.0, 200.0], -110.0),
    "elu": (ca.ELU() @ x, [-150.0, 3.0], -150.0),
    "arctan": (ca.Arctan(), [1e25, -1e25], -100 * math.log(10)),
    "on the way": (1e30 * ca.Sigmoid(), [-110.0, -100.0], 60 * math.log(10) - 210.0),
    "a product": (ca.Exp() * ca.Exp(), [-90.0, -50.0], 2 * math.log(2) - 280.0),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("training", [False, True])
def test_log_dets_where_float32_slopes_are_0_or_infinite(name: str, training: bool) -> None:
    function, place, expected = ENDS[name]
    at = torch.tensor([place], requires_grad=True)
    log_det = Composed(function, (2,)).train(training)(at)[1]
    assert log_det.dtype == torch.float32
    assert log_det.item() == pytest.approx(expected, rel=1e-4)
    assert bool(torch.autograd.grad(log_det.sum(), at)[0].isfinite().all())
    with pytest.raises(ValueError, match="float64"):
        function(ca.variable(at)).log_det()


def test_log_dets_of_layers_and_those_beyond_float64() -> None:
    layer = mn.RealNVPCoupling((2,), "channel", network=nn.Linear(2, 4), scale="exp")
    nn.init.zeros_(layer.conditioner.network.weight)
    nn.init.constant_(layer.conditioner.network.bias, -120.0)
    assert layer(torch.zeros(1, 2))[1].item() == pytest.approx(-120.0)
    for place in (800.0, -800.0):
        with pytest.raises(ValueError, match="log-determinant of Composed is not finite"):
            Composed(ca.Exp(), (1,))(torch.tensor([[place]]))
    with pytest.raises(ValueError, match="value of Composed is not finite for 1 of 2 samples"):
        Composed(ca.Exp(), (2,))(torch.tensor([[1.0, 1.0], [100.0, 1.0]]))


def test_traces_of_any_length_and_constants_on_copies() -> None:
    def long(v):
        for _ in range(3000):
            v = v + 1e-3
        return v

    assert certify(long, (1,)).onto
    both = ca.MaskedLinear(2, 2, 1) @ (ca.MaskedLinear(2, 1, 2) + 1.0)
    assert both(ca.variable(torch.zeros(1, 2))).data.shape == (1, 2)
    assert not certify(strictly_earlier(2) + 1.0, (2,)).injective
