"""Random compositions: slopes against autograd. The campaign of proofs checks their bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mintnet import calculus as ca
from mintnet.calculus.expression import trace
from registry import away_from_zero, jacobian

NAMES = (*ca.ACTIVATIONS, *ca.ACTIVATIONS, "arctan", "exp")


@dataclass(frozen=True)
class Recipe:
    """A function with what is needed to try it."""

    function: ca.Function
    shape: tuple[int, ...]
    upper: bool


ACTIVATIONS = {**ca.ACTIVATIONS, "arctan": ca.Arctan, "exp": ca.Exp}


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    dense, upper = draw(st.booleans()), draw(st.booleans())
    groups = draw(st.integers(1, 3))
    shape = (groups,) if dense else (groups, draw(st.integers(1, 3)), draw(st.integers(1, 3)))

    def linear(copies_in: int, copies_out: int) -> ca.Function:
        bias = draw(st.booleans())
        if dense:
            return ca.MaskedLinear(groups, copies_in, copies_out, upper, bias)
        kernel = draw(st.sampled_from((1, 3, 5)))
        return ca.MaskedConv2d(groups, copies_in, copies_out, kernel, upper, bias)

    def build(depth: int, copies: int) -> ca.Function:
        """A function from one copy of each channel to this many."""
        leaf = ca.Identity() if copies == 1 else linear(1, copies)
        if depth == 0:
            return leaf
        kind = draw(
            st.sampled_from(("activation", "linear", "sum", "difference", "product", "scale"))
        )
        if kind == "activation":
            return ACTIVATIONS[draw(st.sampled_from(NAMES))]() @ build(depth - 1, copies)
        if kind == "linear":
            inner = draw(st.integers(1, 3))
            return linear(inner, copies) @ build(depth - 1, inner)
        if kind == "scale":
            factor = draw(st.sampled_from((-2.0, -0.5, 0.25, 3.0, 0.0, 1.0)))
            return factor * build(depth - 1, copies)
        first, second = build(depth - 1, copies), build(draw(st.integers(0, depth - 1)), copies)
        if kind == "sum":
            return first + second
        return first - second if kind == "difference" else first * second

    function = build(draw(st.integers(1, 5)), 1)
    if draw(st.booleans()):  # many random functions are not monotone; these have a chance
        function = draw(st.sampled_from((4.0, -4.0))) * ca.Identity() + function
    function = away_from_zero(function.double(), draw(st.integers(0, 1000)), 1.5)
    return Recipe(function, shape, upper)


@given(recipes())
@settings(max_examples=80)
def test_slopes_equal_autograd_and_jacobians_are_triangular(recipe: Recipe) -> None:
    x = 2 * torch.rand(1, *recipe.shape, dtype=torch.float64) - 1
    with torch.no_grad():
        value = recipe.function(ca.variable(x))
    if not bool(value.data.isfinite().all()) or float(value.data.abs().max()) > 1e100:
        return  # exp(exp(…)) overflows
    assert value.ordering in (None, ca.UPPER if recipe.upper else ca.LOWER)
    j = jacobian(lambda x: recipe.function(ca.variable(x)).data, x)[0]
    rank = (ca.UPPER if recipe.upper else ca.LOWER).rank(recipe.shape).flatten()
    assert int(torch.count_nonzero(j[rank[None, :] > rank[:, None]])) == 0
    scale = max(float(j.abs().max()), 1.0)
    torch.testing.assert_close(
        value.slope.detach().flatten(), j.diagonal(), rtol=1e-9, atol=1e-13 * scale
    )
    nodes = trace(recipe.function).nodes()
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
