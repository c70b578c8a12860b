"""Interval arithmetic is rounded outwards: checked in exact arithmetic."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mintnet.calculus import ACTIVATIONS, Arctan, Elementwise, Exp
from mintnet.calculus.interval import Interval, linear_image

INF = float("inf")
numbers = st.one_of(
    st.floats(-1e3, 1e3),
    st.floats(-1e-300, 1e-300),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e150, max_value=1e150),
    st.sampled_from([0.0, 1.0, -1.0, 0.1, 1 / 3, 5e-324, -5e-324, 1e-200]),
)


def interval(low: float, high: float) -> Interval:
    return Interval.of(*(torch.tensor([end], dtype=torch.float64) for end in (low, high)))


def bounds(found: Interval) -> tuple[float, float, int]:
    return found.low.item(), found.high.item(), int(found.sign)


def contains(found: Interval, exact: Fraction) -> bool:
    low, high, sign = bounds(found)
    inside = (low == -INF or Fraction(low) <= exact) and (high == INF or exact <= Fraction(high))
    return inside and (sign == 0 or ((exact > 0) == (sign > 0) and exact != 0))


pairs = st.tuples(numbers, numbers).map(sorted)


@given(pairs, pairs)
@example([0.1, 0.1], [0.2, 0.2])
@example([1e-200, 1e-200], [1e-200, 1e-200])
@example([5e-324, 5e-324], [0.5, 0.5])
def test_sums_and_products_contain_the_exact_results(a: list[float], b: list[float]) -> None:
    x, y = interval(*a), interval(*b)
    for u, v in itertools.product(a, b):
        assert contains(x + y, Fraction(u) + Fraction(v))
        assert contains(x * y, Fraction(u) * Fraction(v))
        assert contains(x + (-y), Fraction(u) - Fraction(v))


@given(
    st.lists(st.tuples(pairs, st.floats(-1e3, 1e3)), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
@example([([1e16, 1e16], 1.0), ([1.0, 1.0], 1.0), ([-1e16, -1e16], 1.0)], [True] * 6)
@example([([0.1, 0.1], 0.1)] * 3, [True] * 6)
def test_linear_images_contain_the_exact_results(terms, ends) -> None:
    low = torch.tensor([[p[0] for p, _ in terms]], dtype=torch.float64)
    high = torch.tensor([[p[1] for p, _ in terms]], dtype=torch.float64)
    weight = torch.tensor([[w for _, w in terms]], dtype=torch.float64)
    image = linear_image(Interval.of(low, high), weight, lambda data, w: data @ w.T)
    products = [[Fraction(end) * Fraction(w) for end in p] for p, w in terms]
    exact = sum(both[int(end)] for both, end in zip(products, ends, strict=False))
    if any(0 < abs(product) < Fraction(1e-290) for both in products for product in both):
        return  # underflow has a test of its own
    assert contains(image, Fraction(exact))


def test_linear_images_of_tiny_numbers() -> None:
    tiny = torch.full((1, 1), 1e-200, dtype=torch.float64)
    image = linear_image(Interval.of(tiny, tiny), tiny, lambda data, w: data @ w.T)
    assert contains(image, Fraction(1e-200) ** 2) and not bool(image.zero)


def test_overflow_is_not_a_lower_bound() -> None:
    large, larger = interval(1e200, 1e200), interval(1.5e308, 1.5e308)
    for found, exact in ((large * large, 10**400), (larger + larger, 3 * 10**308)):
        low, high, _ = bounds(found)
        assert low < INF and Fraction(low) <= exact and high == INF


def test_infinite_bounds() -> None:
    """Zero times infinity is zero."""
    nothing = interval(-INF, INF) * interval(0.0, 0.0)
    assert bounds(nothing) == (0.0, 0.0, 0) and bool(nothing.zero)
    assert bounds(interval(0.0, INF) * interval(0.0, 2.0)) == (0.0, INF, 0)
    assert bounds(interval(-INF, 1.0) + interval(2.0, INF)) == (-INF, INF, 0)
    assert bounds(interval(1.0, INF) + interval(2.0, INF)) == (3.0, INF, 1)


def test_strict_signs() -> None:
    positive = Interval.of(torch.zeros(1), torch.full((1,), 5.0), torch.ones(1, dtype=torch.int8))
    touching = interval(0.0, 5.0)  # and positive is (0, 5]
    for found, sign in (
        (positive + touching, 1),
        (positive + positive, 1),
        (touching + touching, 0),
        (positive * positive, 1),
        (positive * touching, 0),
        (-positive, -1),
        (positive + (-positive), 0),
        (positive * (-positive), -1),
    ):
        assert int(found.sign) == sign


def test_signs_through_linear_maps() -> None:
    sign = torch.tensor([[1, 0, -1]], dtype=torch.int8)
    part = Interval.of(torch.tensor([[0.0, 0.0, -2.0]]), torch.tensor([[3.0, 1.0, 0.0]]), sign)
    for expected, rows in {
        1: [(1.0, 0.0, 0.0), (1.0, 2.0, 0.0), (1.0, 1.0, -1.0)],
        0: [(1.0, -2.0, 0.0), (0.0, 1.0, 0.0), (1.0, 0.0, 1.0), (0.0, 0.0, 0.0)],
        -1: [(0.0, 0.0, 1.0), (-1.0, 0.0, 1.0), (-1.0, -0.1, 0.0)],
    }.items():
        image = linear_image(part, torch.tensor(rows), lambda data, w: data @ w.T)
        assert image.sign.tolist() == [[expected] * len(rows)]


ALL = [*ACTIVATIONS.values(), Exp, Arctan]
by_kind = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


@by_kind
@given(pairs.filter(lambda p: abs(p[0]) < 600 and abs(p[1]) < 600), st.floats(0, 1))
def test_ranges_of_elementwise_functions(kind: type[Elementwise], ends, share) -> None:
    h = kind()
    v = torch.tensor([ends[0] + share * (ends[1] - ends[0])], dtype=torch.float64)
    v = v.clamp(ends[0], ends[1])
    value, slope = h.value_and_slope(v)
    assert torch.equal(h.value(v), value)
    part = interval(*ends)
    values, slopes = h.value_range(part), h.slope_range(part)
    assert bool((values.low <= value) & (value <= values.high))
    assert bool((slopes.low <= slope) & (slope <= slopes.high))
    assert int(slopes.sign) == 1
    assert bool(slopes.low >= 0) and bool(values.low >= h.floor) and bool(values.high <= h.ceiling)


@by_kind
def test_ranges_over_all_reals(kind: type[Elementwise]) -> None:
    h, everything = kind(), interval(-INF, INF)
    values, slopes = h.value_range(everything), h.slope_range(everything)
    assert bounds(values)[:2] == (h.floor, h.ceiling)
    slope = h.value_and_slope(torch.linspace(-50, 50, 1001).double())[1]
    assert bool((slope >= slopes.low).all() & (slope <= slopes.high).all())
    assert not slopes.high.isnan() and not slopes.low.isnan()


def _reference(name: str, v: float) -> tuple[float, float]:
    """h and h' with relative accuracy, from the standard library."""
    sigmoid = 1 / (1 + math.exp(-v)) if v > 0 else math.exp(v) / (1 + math.exp(v))
    other = 1 / (1 + math.exp(v)) if v < 0 else math.exp(-v) / (1 + math.exp(-v))
    return {
        "ELU": (v, 1.0) if v > 0 else (math.expm1(v), math.exp(v)),
        "Tanh": (math.tanh(v), 1 / math.cosh(v) ** 2),
        "Sigmoid": (sigmoid, sigmoid * other),
        "Softplus": (max(v, 0) + math.log1p(math.exp(-abs(v))), sigmoid),
        "LeakyReLU": (v, 1.0) if v > 0 else (0.01 * v, 0.01),
        "Exp": (math.exp(v), math.exp(v)),
        "Arctan": (math.atan(v), 1 / (1 + v * v)),
    }[name]


@by_kind
@pytest.mark.parametrize("v", [-300.0, -40.0, -3.0, -0.5, -1e-9, 1e-9, 0.5, 3.0, 40.0, 300.0])
def test_values_and_slopes_have_relative_accuracy(kind: type[Elementwise], v: float) -> None:
    """Also in the tails, where slopes are tiny but not 0."""
    at = torch.tensor([v], dtype=torch.float64)
    value, slope = (part.item() for part in kind().value_and_slope(at))
    expected = _reference(kind.__name__, v)
    assert value == pytest.approx(expected[0], rel=1e-13, abs=0)
    assert slope == pytest.approx(expected[1], rel=1e-13, abs=0)
    if abs(v) <= 3:
        single = kind().value_and_slope(at.float())
        assert all(part.dtype == torch.float32 for part in single)
        assert [part.item() for part in single] == pytest.approx(expected, rel=1e-6, abs=1e-12)
