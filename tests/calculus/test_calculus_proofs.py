"""Proofs of invertibility that must come out right, and those that must not come out."""

import pytest
import torch
from torch import nn

from mintnet import Chain, Composed, MintLayer, NotProvedError, OrderingError, certify
from mintnet import calculus as ca
from registry import away_from_zero, jacobian, strictly_earlier

FILLS = {
    "random": lambda p: p,
    "zero": torch.zero_,
    "some-zero": lambda p: p.mul_(torch.rand(p.shape) < 0.5),
    "huge": lambda p: p.mul_(1e12),
    "tiny": lambda p: p.mul_(1e-30),
    "overflowing": lambda p: p.fill_(1e150),
    "one-sided": lambda p: p.abs_().neg_(),
    "mixed": lambda p: p.mul_(10 ** torch.empty(p.shape).uniform_(-20, 10)),
}


@pytest.mark.parametrize("how", FILLS)
@pytest.mark.parametrize("activation", ca.ACTIVATIONS)
def test_a_mint_layer_of_any_weights_is_onto(activation: str, how: str) -> None:
    for upper, form in ((False, "softplus"), (True, "absolute")):
        layer = away_from_zero(MintLayer(2, 3, (3, 2), upper, activation, t_form=form), 3).double()
        with torch.no_grad():
            for weight in (layer.weight1, layer.weight2, layer.weight3):
                FILLS[how](weight)
        proof = layer.certify()
        assert proof.onto, proof.message
        low, high = layer.slope_bounds()
        assert low.shape == high.shape == layer.event_shape
        assert bool((low >= layer.t).all()) and bool((low <= high).all())
        if how == "zero":
            assert torch.equal(low, layer.t.double()) and torch.equal(high, low)


@pytest.mark.parametrize("activation", ca.ACTIVATIONS)
def test_sums_and_compositions_are_onto_and_differences_not_proved(activation: str) -> None:
    first = away_from_zero(MintLayer(2, 3, (3, 3), activation=activation), 1)
    second = away_from_zero(MintLayer(2, 2, (3, 3)), 2)
    both = certify(lambda x: first.function(x) + second.function(x), (2, 3, 3))
    assert both.onto and bool((both.low >= first.t + second.t - 1e-6).all())
    chained = certify(lambda x: second.function(first.function(x)), (2, 3, 3))
    assert chained.onto and bool((chained.low >= 0.999 * first.t * second.t).all())
    difference = certify(lambda x: first.function(x) - second.function(x), (2, 3, 3))
    assert not difference.injective and "the sum of slopes" in difference.message
    assert bool((difference.verdict == ca.Verdict.NOT_PROVED).any())
    with pytest.raises(NotProvedError, match="not proved to be invertible"):
        Composed(lambda x: first.function(x) - second.function(x), (2, 3, 3))


ONTO, INJECTIVE, NOT = (True, True), (False, True), (False, False)
x = ca.Identity()

VERDICTS = {
    "identity": (x, ONTO),
    "2x": (2.0 * x, ONTO),
    "-x": (-x, ONTO),
    "0x": (0.0 * x, NOT),
    "x+1": (x + 1.0, ONTO),
    "x·x": (x * x, NOT),
    "x³": (x * x * x, NOT),
    "x+x³": (x + x * x * x, NOT),
    "softplus": (ca.Softplus() @ x, INJECTIVE),
    "-softplus": (-1.0 * ca.Softplus(), INJECTIVE),
    "x+softplus": (x + ca.Softplus(), ONTO),
    "x-softplus": (x - ca.Softplus(), NOT),
    "2x-softplus": (2.0 * x - ca.Softplus(), ONTO),
    "x-0.5softplus": (x - 0.5 * ca.Softplus(), ONTO),
    "arctan": (ca.Arctan() @ x, INJECTIVE),
    "tanh∘tanh": (ca.Tanh() @ ca.Tanh(), INJECTIVE),
    "elu": (ca.ELU() @ x, INJECTIVE),
    "leaky relu": (ca.LeakyReLU() @ x, ONTO),
    "leaky∘leaky": (ca.LeakyReLU() @ ca.LeakyReLU(), ONTO),
    "exp": (ca.Exp() @ x, INJECTIVE),
    "exp - exp(-x)": (ca.Exp() - ca.Exp() @ (-x), INJECTIVE),
    "exp + exp(-x)": (ca.Exp() + ca.Exp() @ (-x), NOT),
    "x·exp(x)": (x * ca.Exp(), NOT),
    "x·sigmoid(x)": (x * ca.Sigmoid(), NOT),
    "exp·sigmoid": (ca.Exp() * ca.Sigmoid(), INJECTIVE),
    "sigmoid·sigmoid": (ca.Sigmoid() * ca.Sigmoid(), INJECTIVE),
    "3x+tanh·sigmoid": (3.0 * x + ca.Tanh() * ca.Sigmoid(), ONTO),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name: str) -> None:
    function, (onto, injective) = VERDICTS[name]
    proof = certify(function, (2,))
    assert (proof.onto, proof.injective) == (onto, injective), proof.message


def test_functions_of_earlier_entries_prove_couplings() -> None:
    """±x·exp(s(earlier)) + m(earlier) is affine in its own coordinate: onto, unbounded slopes."""
    s, m = strictly_earlier(4), strictly_earlier(4)
    for sign in (1.0, -1.0):
        proof = certify(lambda x, k=sign: k * (x * ca.Exp()(s(x))) + m(x), (4,))
        assert proof.onto, proof.message
        bound = proof.low if sign > 0 else -proof.high
        assert bound[0] > 0 and float(bound[1:].abs().max()) == 0
    dependent = ca.MaskedLinear(4)
    assert not certify(lambda x: x * ca.Exp()(dependent(x)), (4,)).injective
    assert not certify(lambda x: m(x), (4,)).injective
    curved = certify(lambda x: ca.Softplus()(x) * ca.Exp()(s(x)), (4,))
    assert curved.injective and not curved.onto


def test_explanations() -> None:
    assert certify(0.0 * ca.Identity(), (2, 2)).message == (
        "not proved for 4 of 4 coordinates: the slope is exactly 0, so the coordinate is lost"
    )
    product = certify(ca.Identity() * ca.Identity(), (3,))
    words = "not proved for 3 of 3 coordinates: the product of values in [-inf, inf]"
    assert words in product.message
    assert product.blame is not None and "entry (0,)" in product.blame
    assert certify(ca.Softplus() @ ca.Identity(), (1,)).message.startswith("injective only")
    inner = ca.MaskedConv2d(1, 1, 2)
    outer = ca.MaskedConv2d(1, 2, 1)
    with torch.no_grad():
        inner.weight[:, :, 1, 1] = 1.0
        outer.weight[0, :, 1, 1] = torch.tensor([1.0, -1.0])
    message = certify(outer @ ca.Tanh() @ inner, (1, 2, 2)).message
    assert "the masked 3×3 convolution from 2 to 1 channels" in message


def test_refused_with_the_explanation_unless_insisted() -> None:
    with pytest.raises(NotProvedError) as info:
        Composed(ca.Identity() * ca.Identity(), (2,))
    for words in ("Composed is not proved", "the product of values", "t·x", "insist=True"):
        assert words in str(info.value)
    bijection = Composed(ca.Identity() * ca.Identity(), (2,), insist=True)
    y, log_det = bijection(torch.tensor([[3.0, 4.0]]))
    assert y.tolist() == [[9.0, 16.0]]
    assert log_det.item() == pytest.approx(torch.tensor(48.0).log().item())


def test_proofs_are_made_in_evaluation_mode_and_once(monkeypatch) -> None:
    linear, at = ca.MaskedLinear(2).requires_grad_(False), torch.zeros(1, 2)
    linear.weight.copy_(torch.tensor([[1.0, 0.0], [0.5, 1.0]]))
    bijection = Composed(ca.Identity() + ca.Tanh() @ linear, (2,))
    linear.weight.mul_(-5)
    bijection(at)  # training goes on
    linear.weight.mul_(-1)
    bijection.eval()(at)
    monkeypatch.setattr(Composed, "certify", lambda self: pytest.fail("proved again"))
    bijection(at)


def _of_tiny_weights() -> ca.Function:
    first, second = (ca.MaskedLinear(1, bias=False).double() for _ in range(2))
    for layer in (first, second):
        nn.init.constant_(layer.weight, 1e-200)
    return ca.Softplus() @ first @ second


SATURATED = {
    "elu": lambda: ca.ELU() @ (ca.Sigmoid() + -800.0),
    "softplus": lambda: ca.Softplus() @ (ca.Tanh() - 800.0),
    "exp": lambda: ca.Exp() @ (ca.Sigmoid() - 2000.0),
    "tiny weights": _of_tiny_weights,
}


@pytest.mark.parametrize("name", SATURATED)
def test_saturated_activations_are_not_onto(name: str) -> None:
    """Their slopes are positive and too small for floating point; no large z is ever reached."""
    proof = certify(SATURATED[name](), (1,))
    assert not proof.onto, proof.message
    assert bool((proof.high >= 0).all())


def test_overflowing_bounds_prove_nothing() -> None:
    """x − x·exp(σ(x) + 800) falls, whatever its first term does."""
    spread, gather = (ca.MaskedLinear(1, *c, bias=False).double() for c in ((1, 2), (2, 1)))
    for layer in (spread, gather):
        nn.init.ones_(layer.weight)
    offset, first, second = torch.tensor([[0.0, 800.0], [1.0, 0.0], [0.0, -1.0]]).double()

    def function(x):
        u = spread(x)
        return gather(u * first + (u * ca.Exp()(ca.Sigmoid()(u) + offset)) * second)

    assert not certify(function, (1,)).injective


MISFITS = {
    "channels taken for copies": (lambda: ca.Tanh() @ ca.MaskedConv2d(1, 4, 4, 1), (4, 2, 2)),
    "copies taken for channels": (
        lambda: (
            ca.MaskedLinear(2, 2, 1)
            @ ca.Tanh()
            @ ca.MaskedLinear(4)
            @ ca.Tanh()
            @ ca.MaskedLinear(2, 1, 2)
        ),
        (2,),
    ),
    "copies of pixels taken for channels": (
        lambda: (
            ca.MaskedConv2d(2, 2, 1) @ ca.Tanh() @ ca.MaskedConv2d(4) @ ca.MaskedConv2d(2, 1, 2)
        ),
        (2, 3, 3),
    ),
    "a dense layer on images": (lambda: ca.Tanh() @ ca.MaskedLinear(4), (4, 2, 4)),
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfitting_parts_raise_or_are_right(name: str) -> None:
    make, shape = MISFITS[name]
    function = away_from_zero(5.0 * ca.Identity() + make(), 3).double()
    try:
        bijection = Composed(function, shape, insist=True)
    except ValueError:
        return
    point = torch.randn(1, *shape, dtype=torch.float64)
    j = jacobian(lambda x: bijection(x)[0], point)
    torch.testing.assert_close(bijection(point)[1], torch.linalg.slogdet(j)[1])


def test_two_orderings_in_one_value(raises_with) -> None:
    lower, upper = ca.MaskedConv2d(1), ca.MaskedConv2d(1, upper=True)
    v = ca.variable(torch.randn(1, 1, 3, 3))
    for combine in (
        lambda: lower(v) + upper(v),
        lambda: lower(v) * upper(v),
        lambda: upper(lower(v)),
        lambda: upper(v) - lower(v),
        lambda: certify(upper @ ca.Tanh() @ lower, (1, 3, 3)),
        lambda: Composed(upper @ lower, (1, 3, 3)),
    ):
        with raises_with(OrderingError, "lower", "upper", "Chain"):
            combine()
    Chain(MintLayer(1, 2, (3, 3)), MintLayer(1, 2, (3, 3), upper=True))


def test_shapes_that_do_not_fit(raises_with) -> None:
    v, wide = ca.variable(torch.randn(1, 1, 3, 3)), ca.MaskedConv2d(1, 1, 2)
    constant = torch.zeros(3, 1, 1)
    for ask, *words in (
        (lambda: v + wide(v), "cannot add", "(1, 1, 3, 3)", "(1, 2, 3, 3)", "copies"),
        (lambda: v * wide(v), "cannot multiply", "copies"),
        (lambda: certify(wide, (1, 3, 3)), "the shape", "(1, 3, 3)", "(2, 3, 3)", "copies_out=1"),
        (lambda: Composed(lambda x: x + constant, (1, 4, 4)), "shape"),
        (lambda: Composed(ca.Identity() * torch.eye(2), (2,)), ""),
    ):
        with raises_with(ValueError, *words):
            ask()
    with raises_with(TypeError, "expected a Function"):
        ca.Identity() + "x"
