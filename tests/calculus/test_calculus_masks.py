"""Masks against literal matrices and against the words of Eq. 7."""

import pytest
import torch

from mintnet import calculus as ca


def test_masks_literally() -> None:
    whole, none = [[1] * 3] * 3, [[0] * 3] * 3
    causal, late = [[1, 1, 1], [1, 1, 0], [0, 0, 0]], [[0, 0, 0], [0, 1, 1], [1, 1, 1]]
    five = [[1] * 5, [1] * 5, [1, 1, 1, 0, 0], [0] * 5, [0] * 5]
    three = [[causal, none, none], [whole, causal, none], [whole, whole, causal]]
    for mask, expected in (
        (ca.causal_taps(1), [[1]]),
        (ca.causal_taps(3), causal),
        (ca.causal_taps(3, upper=True), late),
        (ca.causal_taps(5), five),
        (ca.channel_mask(3, 3), three),
        (ca.channel_mask(2, 3, upper=True), [[late, whole], [none, late]]),
    ):
        assert mask.int().tolist() == expected


@pytest.mark.parametrize("upper", [False, True])
def test_wide_masks_literally(upper: bool) -> None:
    """K×1, K×K and 1×K for C = 2, K = 2, kernels of one tap."""
    literal = {
        (2, 1): [[1, 0], [1, 0], [1, 1], [1, 1]],
        (2, 2): [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]],
        (1, 2): [[1, 1, 0, 0], [1, 1, 1, 1]],
    }
    for (out, into), expected in literal.items():
        mask = ca.conv_mask(2, out, into, 1, upper).int()[:, :, 0, 0]
        wanted = torch.tensor(expected)
        assert torch.equal(mask, (wanted.flip(0, 1) if upper else wanted).int())
        assert torch.equal(ca.dense_mask(2, out, into, upper).int(), mask)


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
@pytest.mark.parametrize("upper", [False, True])
def test_masks_follow_the_words_of_eq_7(kernel_size: int, upper: bool) -> None:
    channels, out, into, r = 3, 2, 3, kernel_size // 2
    mask = ca.conv_mask(channels, out, into, kernel_size, upper)
    assert mask.shape == (channels * out, channels * into, kernel_size, kernel_size)
    for o, i, m, n in torch.cartesian_prod(*map(torch.arange, mask.shape)).tolist():
        to, at = o // out, i // into
        if to != at:
            seen = at > to if upper else at < to
        else:
            seen = (m, n) >= (r, r) if upper else (m, n) <= (r, r)
        assert bool(mask[o, i, m, n]) is seen


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_what_a_masked_convolution_sees(kernel_size: int, upper: bool) -> None:
    """Every coordinate that may be seen within the kernel's reach is seen; no other is."""
    shape = (2, 4, 5)
    conv = ca.MaskedConv2d(2, kernel_size=kernel_size, upper=upper).double()
    with torch.no_grad():
        conv.weight.fill_(1.0)
    x = torch.zeros(1, *shape, dtype=torch.float64)
    j = torch.autograd.functional.jacobian(lambda x: conv(ca.variable(x)).data, x).reshape(40, 40)
    rank = (ca.UPPER if upper else ca.LOWER).rank(shape).flatten()
    place = torch.tensor([(r, q) for _ in range(2) for r in range(4) for q in range(5)])
    near = (place[:, None] - place[None]).abs().amax(-1) <= kernel_size // 2
    channel = torch.arange(40) // 20
    other = (channel[:, None] != channel[None]) & (rank[None] < rank[:, None])
    own = (channel[:, None] == channel[None]) & (rank[None] <= rank[:, None])
    assert torch.equal(j != 0, near & (other | own))


def test_masks_are_not_saved() -> None:
    assert set(ca.MaskedConv2d(2).state_dict()) == {"weight", "bias"}
    assert set(ca.MaskedLinear(2, bias=False).state_dict()) == {"weight"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ca.conv_mask(0, 1, 1, 3), ("channels", "at least 1", "0")),
        (lambda: ca.conv_mask(2, 0, 1, 3), ("copies_out", "at least 1", "0")),
        (lambda: ca.conv_mask(2, 1, -1, 3), ("copies_in", "at least 1", "-1")),
        (lambda: ca.conv_mask(2, 1, 1, 4), ("kernel_size", "odd", "4")),
        (lambda: ca.conv_mask(2, 1, 1, 0), ("kernel_size", "at least 1", "0")),
        (lambda: ca.dense_mask(True, 1, 1), ("channels", "whole number", "True")),
        (lambda: ca.conv_mask(2, 1.5, 1, 3), ("copies_out", "whole number", "1.5")),
    ],
)
def test_bad_sizes(make, words, raises_with) -> None:
    with raises_with(ValueError, *words):
        make()
