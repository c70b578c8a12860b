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
    one_tap = ca.conv_mask(channels, out, into, 1, upper)[:, :, 0, 0]
    assert torch.equal(ca.dense_mask(channels, out, into, upper), one_tap)


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
