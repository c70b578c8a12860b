"""The Mint layer against Eq. 2 written out, and its sign constraint."""

import itertools

import pytest
import torch
from torch import nn

from mintnet import MintLayer, paired_mint
from mintnet.bijections.mint import constrained
from mintnet.calculus import Function, MaskedConv2d, variable
from mintnet.models.base import parameter_count
from registry import away_from_zero


class Equation2(Function):
    """Σᵢ W³ᵢ h(Σⱼ W²ᵢⱼ h(W¹ⱼ x + b¹ⱼ) + b²ᵢ) + b³ + t ⊙ x, group by group, one copy each."""

    def __init__(self, layer: MintLayer) -> None:
        super().__init__()
        c, k, upper = layer.channels, layer.filters, layer.ordering.upper
        self.h, self.k, self.t = layer.h, k, layer.t.detach()

        def group(weight: torch.Tensor, bias: torch.Tensor | None) -> MaskedConv2d:
            conv = MaskedConv2d(c, 1, 1, layer.kernel_size, upper, bias is not None).double()
            with torch.no_grad():
                conv.weight.copy_(weight)
                if bias is not None:
                    conv.bias.copy_(bias)
            return conv

        w1, w2, w3 = (weight.detach() for weight in layer.weights())
        self.first = nn.ModuleList(group(w1[j::k], layer.bias1[j::k]) for j in range(k))
        self.second = nn.ModuleList(
            group(w2[i::k, j::k], layer.bias2[i::k] if j == 0 else None)
            for i in range(k)
            for j in range(k)
        )
        third = (group(w3[:, i::k], layer.bias3 if i == 0 else None) for i in range(k))
        self.third = nn.ModuleList(third)

    def forward(self, x):  # type: ignore[no-untyped-def]
        hidden = [self.h(conv(x)) for conv in self.first]
        y = self.t * x
        for i in range(self.k):
            v = self.second[i * self.k](hidden[0])
            for j in range(1, self.k):
                v = v + self.second[i * self.k + j](hidden[j])
            y = y + self.third[i](self.h(v))
        return y


@pytest.mark.parametrize("name", ["elu", "tanh", "sigmoid", "softplus", "leaky_relu"])
@pytest.mark.parametrize(("upper", "kernel_size"), [(False, 3), (True, 3), (False, 5), (True, 1)])
def test_eq_2_group_by_group_equals_the_fast_layer(name, upper, kernel_size) -> None:
    layer = MintLayer(2, 3, (4, 3), upper, name, kernel_size).double()
    away_from_zero(layer, 3, 2.0)
    x = 2 * torch.randn(2, 2, 4, 3, dtype=torch.float64)
    plain = Equation2(layer)(variable(x))
    y, slope = layer.evaluate(x)
    torch.testing.assert_close(y, plain.data, rtol=1e-13, atol=1e-12)
    torch.testing.assert_close(slope, plain.slope, rtol=1e-12, atol=0)
    torch.testing.assert_close(layer(x)[1], plain.log_det(), rtol=1e-12, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("channels", [1, 3])
def test_the_value_alone(channels: int) -> None:
    layer = away_from_zero(MintLayer(channels, 4, (5, 6)).double(), 3, 2.0)
    x = torch.randn(3, channels, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(layer.value(x), layer.evaluate(x)[0])


def test_the_gradient_through_the_constraint() -> None:
    """That of |w| times a sign, by which it is defined, also where a weight is 0."""
    layer = away_from_zero(MintLayer(2, 3, (3, 3)).double(), 4)
    with torch.no_grad():
        layer.weight2[0, 0, 1, 1] = layer.weight3[1, 4, 1, 1] = 0.0
    _, w2, _ = layer.weights()
    (gradient,) = torch.autograd.grad(w2.sum(), layer.weight2)
    changed = w2.sign() * layer.weight2.sign() * layer.mask2 == -1
    assert 0 < int(changed.sum()) < 18
    assert gradient[0, 0, 1, 1] == 0 and not bool(gradient[4, 3:, 1, 1].any())
    expected = torch.where(changed, -1.0, layer.mask2.double())
    expected[0, 0, 1, 1] = 0.0
    expected[4, 3:, 1, 1] = 0.0
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_the_sign_constraint_changes_only_centre_diagonal_taps(upper, kernel_size) -> None:
    c, k, r = 3, 2, kernel_size // 2
    layer = away_from_zero(MintLayer(c, k, (3, 3), upper, kernel_size=kernel_size), 5)
    w1, w2, w3 = layer.weights()
    raw = layer.weight2 * layer.mask2
    changed = (w2 != raw).nonzero().tolist()
    assert changed, "random signs always break the constraint somewhere"
    for out, into, m, n in changed:
        assert (m, n) == (r, r) and out // k == into // k
    torch.testing.assert_close(w2.abs(), raw.abs(), rtol=0, atol=0)
    for channel, i, j in itertools.product(range(c), range(k), range(k)):
        a, b = channel * k + i, channel * k + j
        assert float(w3[channel, a, r, r] * w2[a, b, r, r] * w1[b, channel, r, r]) > 0
    assert not bool((w2 * ~layer.mask2).any())


def test_the_constraint_with_zero_weights() -> None:
    layer = away_from_zero(MintLayer(1, 2, (2, 2)), 5)
    with torch.no_grad():
        layer.weight1[0, 0, 1, 1] = 0.0
    w1, w2, w3 = layer.weights()
    assert w2[0, 0, 1, 1] == 0 and w2[1, 0, 1, 1] == 0 and w2[1, 1, 1, 1] != 0
    assert torch.equal(constrained(w2, w1, w3, 1, layer.mask2), w2)


def test_t_stays_clear_of_0() -> None:
    layer = MintLayer(1, 2, (3, 3))
    with torch.no_grad():
        layer.raw_t.fill_(-1000.0)
    assert torch.allclose(layer.t, torch.full((1, 3, 3), 0.01))
    old = MintLayer(1, 2, (3, 3), t_form="absolute")
    with torch.no_grad():
        old.raw_t.copy_(torch.linspace(-2, 2, 9).reshape(1, 3, 3))
    assert bool((old.t > 0).all())
    torch.testing.assert_close(old.t.flatten()[:4], -old.raw_t.flatten()[:4])


@pytest.mark.parametrize("form", ["softplus", "absolute"])
def test_a_fresh_pair_is_lower_then_upper_and_near_the_identity(form: str) -> None:
    x = torch.randn(2, 3, 4, 4)
    pair = paired_mint(3, 8, (4, 4), "tanh", 5, form).parts
    assert [layer.ordering.upper for layer in pair] == [False, True]
    for layer in pair:
        assert (layer.activation_name, layer.kernel_size, layer.t_form) == ("tanh", 5, form)
        torch.testing.assert_close(layer.t, torch.ones(3, 4, 4))
        y, log_det = layer(x)
        assert float((y - x - layer.bias3.reshape(3, 1, 1)).abs().max()) < 0.1
        assert float(log_det.abs().max()) < 0.1


def test_masked_weights_do_nothing_and_are_not_counted() -> None:
    layer = away_from_zero(MintLayer(2, 3, (4, 5)).double(), 1)
    x = torch.randn(1, 2, 4, 5, dtype=torch.float64)
    before, masks = layer(x), (layer.mask1, layer.mask2, layer.mask3)
    assert parameter_count(layer) == sum(int(mask.sum()) for mask in masks) + 6 + 6 + 2 + 40
    with torch.no_grad():
        for weight, mask in zip((layer.weight1, layer.weight2, layer.weight3), masks, strict=True):
            weight[~mask] = 1e6
    after = layer(x)
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])
    assert parameter_count(MintLayer(1, 1, (1, 1), kernel_size=1)) == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"filters": 0}, ("filters", "at least 1", "0")),
        ({"channels": 0}, ("channels", "at least 1")),
        ({"size": (0, 4)}, ("height", "at least 1")),
        ({"size": (4, 2.5)}, ("width", "whole number", "2.5")),
        ({"kernel_size": 4}, ("kernel_size", "odd", "4")),
        ({"activation": "relu"}, ("'relu'", "elu, tanh, sigmoid, softplus, leaky_relu")),
        ({"t_form": "square"}, ("'square'", "softplus, absolute")),
    ],
)
def test_bad_arguments(arguments: dict, words, raises_with) -> None:
    with raises_with(ValueError, *words):
        MintLayer(**{"channels": 1, "filters": 2, "size": (4, 4), **arguments})
