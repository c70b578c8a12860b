"""Random compositions: slopes against autograd. The campaign of proofs checks their bounds."""

from __future__ import annotations

import math
import random

import pytest
import torch

from mintnet import calculus as ca
from mintnet.calculus.expression import trace
from mintnet.cli.app import benchmarks
from registry import away_from_zero, jacobian

proofs = benchmarks("campaign").module("proofs")


@pytest.mark.parametrize("seed", range(80))
def test_slopes_equal_autograd_and_jacobians_are_triangular(seed: int, monkeypatch) -> None:
    monkeypatch.setattr(proofs, "FACTORS", (-2.0, -0.5, 0.25, 3.0, 0.0, 1.0))
    rng = random.Random(seed)
    case = proofs.draw(rng)
    function = away_from_zero(proofs.expression(rng, case["shape"], case["depth"]), seed, 1.5)
    x = 2 * torch.rand(1, *case["shape"], dtype=torch.float64) - 1
    with torch.no_grad():
        value = function(ca.variable(x))
    if not bool(value.data.isfinite().all()) or float(value.data.abs().max()) > 1e100:
        return  # exp(exp(…)) overflows
    assert value.ordering in (None, ca.UPPER, ca.LOWER)
    j = jacobian(lambda x: function(ca.variable(x)).data, x)[0]
    rank = (value.ordering or ca.LOWER).rank(tuple(case["shape"])).flatten()
    assert int(torch.count_nonzero(j[rank[None, :] > rank[:, None]])) == 0
    scale = max(float(j.abs().max()), 1.0)
    slope = value.slope.detach().flatten()
    torch.testing.assert_close(slope, j.diagonal(), rtol=1e-9, atol=1e-13 * scale)
    nodes = trace(function).nodes()
    assert [node.operation.value for node in nodes].count("input") == 1
    for place, node in enumerate(nodes):
        assert all(source in nodes[:place] for source in node.sources)


def test_operators_of_values() -> None:
    x = ca.variable(torch.tensor([[2.0, -3.0]], dtype=torch.float64))
    for y, value, slope in (
        (1 - x, [-1, 4], [-1, -1]),
        (x / 2, [1, -1.5], [0.5, 0.5]),
        (x - x * x, [-2, -12], [-3, 7]),
        (-x, [-2, 3], [-1, -1]),
        (3 + x, [5, 0], [1, 1]),
        (torch.tensor([2.0, 5.0]) * x, [4, -15], [2, 5]),
    ):
        assert (y.data.tolist(), y.slope.tolist()) == ([value], [slope])
    assert (-3.0 * x).log_det().item() == pytest.approx(2 * math.log(3.0))
    with pytest.raises(TypeError, match="quantity of the calculus"):
        x + "one"
