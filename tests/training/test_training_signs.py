"""Own taps of Mint layers do not cross 0 in a step, plain or recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mintnet import Flow, MintLayer
from mintnet.calculus.linear import blocks_of
from mintnet.training import Cadence, train
from mintnet.training.signs import LEAST, kept_signs, own_taps


def _signs(flow: Flow) -> list[torch.Tensor]:
    layers = [part for part in flow.modules() if isinstance(part, MintLayer)]
    return [taps.sign() for layer in layers for taps in own_taps(layer)]


@pytest.mark.parametrize("upper", [False, True])
def test_these_are_the_taps_that_give_their_signs(upper: bool) -> None:
    layer = MintLayer(3, 4, (5, 5), upper)
    w2 = layer.weights()[1]
    first, third = own_taps(layer)
    own2 = blocks_of(w2[:, :, 1, 1], 3)  # (C, K, K)
    sign = third.sign().T[:, :, None] * first.sign().T[:, None, :]
    assert torch.equal(own2.sign(), sign)
    first.neg_()  # a view: the weights are changed
    assert torch.equal(blocks_of(layer.weights()[1][:, :, 1, 1], 3), -own2)


def test_a_tap_stays_on_its_side_and_all_else_is_free() -> None:
    torch.manual_seed(0)
    layer = MintLayer(2, 3, (4, 4))
    before = [taps.clone() for taps in own_taps(layer)]
    wanted = torch.randn_like(layer.weight1)
    with torch.no_grad(), kept_signs(layer):
        layer.weight1.copy_(wanted)
    first, third = own_taps(layer)
    crossed = before[0] * _taps_of(wanted) < 0
    assert bool(crossed.any()) and not bool(crossed.all())
    assert torch.equal(first[crossed], LEAST * before[0][crossed].sign())
    assert torch.equal(first[~crossed], _taps_of(wanted)[~crossed])
    assert torch.equal(third, before[1])
    other = wanted.clone()
    other.unflatten(0, (2, 3))[..., 1, 1].diagonal(dim1=0, dim2=2).copy_(first)
    assert torch.equal(layer.weight1.detach(), other)


def _taps_of(weight1: torch.Tensor) -> torch.Tensor:
    return weight1.unflatten(0, (2, 3))[..., 1, 1].diagonal(dim1=0, dim2=2)


@pytest.mark.parametrize("muon", [False, True])
def test_training_keeps_the_signs(tmp_path: Path, muon: bool) -> None:
    options = {"pairs": (1, 1), "filters": (3, 2), "batch_size": 32, "learning_rate": 0.03}
    cadence = Cadence(samples=0, checkpoint=1)
    train("digits", tmp_path / "a", cadence=cadence, max_steps=1, muon=muon, **options)
    train("digits", tmp_path / "b", cadence=cadence, max_steps=40, muon=muon, **options)
    one, two = (Flow.load(tmp_path / name / "last") for name in ("a", "b"))
    assert all(map(torch.equal, _signs(one), _signs(two)))
