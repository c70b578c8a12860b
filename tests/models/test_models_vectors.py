"""Density models of points and of tables: they integrate to 1, come back from disk, and say no."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import mintnet as mn
from mintnet.models.vectors import Columns, TableModel
from mintnet.tables import fit_table
from registry import away_from_zero


def moons(count: int, seed: int = 0) -> Tensor:
    """Two half circles with noise."""
    generator = torch.Generator().manual_seed(seed)
    angle = torch.pi * torch.rand(count, generator=generator)
    moon = torch.arange(count) % 2
    x, y = angle.cos() * (1 - 2 * moon) + moon, angle.sin() * (1 - 2 * moon) + 0.5 * moon
    return torch.stack([x, y], 1) + 0.1 * torch.randn(count, 2, generator=generator)


def integral(log_prob, low: float, high: float, steps: int = 400) -> float:  # type: ignore[no-untyped-def]
    axis = torch.linspace(low, high, steps, dtype=torch.float64)
    return float(log_prob(torch.cartesian_prod(axis, axis)).exp().sum() * (axis[1] - axis[0]) ** 2)


def ready(dimensions: int, **options: int) -> mn.VectorFlow:
    torch.manual_seed(0)
    flow = mn.VectorFlow(dimensions, filters=4, components=3, **options)
    away_from_zero(flow.net, 3, 0.5)
    flow.double().initialize(torch.randn(80, dimensions, dtype=torch.float64))
    return flow.eval()


@torch.no_grad()
def test_a_flow_of_points() -> None:
    flow = ready(2)
    assert integral(flow.log_prob, -25, 25, 300) == pytest.approx(1, abs=1e-2)
    x = flow.sample(2000, seed=1)
    assert x.dtype == torch.float64 and x.shape == (2000, 2)
    torch.testing.assert_close(flow.decode(flow.encode(x)), x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(flow.log_prob_map(x).sum(1), flow.log_prob(x))
    likely = flow.log_prob(x)
    assert float(likely.mean()) > float(flow.log_prob(x + 1.0).mean()) + 0.1
    torch.testing.assert_close(flow.log_prob(x, seed=1), likely)  # there is no noise


@torch.no_grad()
def test_a_flow_of_points_with_classes() -> None:
    flow = ready(3, classes=2)
    x = torch.randn(5, 3, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1, 1])
    assert float((flow.log_prob(x, labels=labels) - flow.log_prob(x, labels=0)).abs().max()) > 1e-3
    assert flow.sample(4, labels=1).shape == (4, 3)


def test_training_by_hand_learns_two_moons() -> None:
    x = moons(1000)
    torch.manual_seed(0)
    flow = mn.VectorFlow(2)
    flow.initialize(x)
    before = float(flow.log_prob(x).detach().mean())
    optimizer = torch.optim.Adam(flow.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        (-flow.log_prob(x).mean()).backward()
        optimizer.step()
    assert float(flow.log_prob(moons(1000, 1)).detach().mean()) > before + 0.4


@pytest.mark.parametrize("double", [False, True])
def test_models_come_back(tmp_path: Path, double: bool) -> None:
    flow = ready(3) if double else ready(3).float()
    flow.save(tmp_path / "flow")
    again = mn.Flow.load(tmp_path / "flow")
    x = torch.randn(4, 3, dtype=flow.dtype)
    assert isinstance(again, mn.VectorFlow) and again.dtype == flow.dtype
    assert torch.equal(again.log_prob(x), flow.log_prob(x))
    table = TableModel(["a", "b", "c"], [flow, ready(3).to(flow.dtype)]).eval()
    table.orders[1] = torch.tensor([2, 0, 1])
    table.save(tmp_path / "table")
    back = TableModel.load(tmp_path / "table")
    assert back.columns == ["a", "b", "c"]
    assert torch.equal(back.log_prob(x), table.log_prob(x))
    assert torch.equal(back.sample(5, seed=3), table.sample(5, seed=3))


def test_what_a_flow_of_points_does_not_take(raises_with) -> None:  # type: ignore[no-untyped-def]
    flow = mn.VectorFlow(2)
    for x, words in (
        (torch.zeros(3, 4), ("(batch, 2)", "(3, 4)")),
        (torch.zeros(3, 2).double(), ("float32", "float64")),
        (torch.zeros(3, 2, dtype=torch.uint8), ("float32", "uint8")),
        (torch.tensor([[0.0, float("nan")]]), ("finite",)),
        (np.zeros((3, 2)), ("tensor", "ndarray")),
    ):
        with raises_with(ValueError, *words):
            flow.log_prob(x)
    with raises_with(TypeError, "images", "BijectionTransform"):
        mn.FlowDistribution(flow)
    with raises_with(ValueError, "shape", "got 0"):
        mn.VectorFlow(0)


@pytest.fixture(scope="module")
def fitted() -> TableModel:
    rows = 1e6 + 1e-2 * moons(300).double().numpy()  # float32 would round these away
    return fit_table(rows, ["x", "y"], members=3, filters=4, max_steps=60)


def test_points_are_no_pictures(raises_with) -> None:  # type: ignore[no-untyped-def]
    flow = mn.VectorFlow(2)
    for method in (flow.score, flow.restore, flow.keep_scores):
        with raises_with(ValueError, "models of images", "log_prob"):
            method(torch.zeros(3, 2))
    with raises_with(ValueError, "index", "list"):
        mn.Flow.preset("digits").bits_per_dim(torch.zeros(2, 1, 8, 8).byte(), index=[0, 1])


def test_a_table_is_scaled_in_float64(fitted: TableModel) -> None:
    def shifted(x: Tensor) -> Tensor:
        return fitted.log_prob(1e6 + 1e-2 * x)

    assert 1e-4 * integral(shifted, -12, 12, 200) == pytest.approx(1, abs=1e-2)
    rows = (fitted.sample(3000) - 1e6) / 1e-2
    real = moons(3000).double()
    torch.testing.assert_close(rows.mean(0), real.mean(0), atol=0.1, rtol=0)
    torch.testing.assert_close(rows.std(0), real.std(0), atol=0.15, rtol=0)


def test_orders_differ_and_a_seed_is_a_model() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 5))
    fit = partial(fit_table, rows, list("abcde"), 4, 2, 20)
    first, second = fit(), fit()
    assert len({tuple(order.tolist()) for order in first.orders}) > 1
    x = torch.tensor(rows)
    assert torch.equal(first.log_prob(x), second.log_prob(x))
    assert not torch.equal(fit(seed=1).log_prob(x), first.log_prob(x))


def test_early_stopping_keeps_rows_that_are_held_out_likely() -> None:
    """On 20 rows of noise in 6 columns a long training hurts; what is kept does not."""
    rng = np.random.default_rng(0)
    rows, new = rng.normal(size=(30, 6)), torch.tensor(rng.normal(size=(500, 6)))
    assert float(fit_table(rows, list("abcdef"), 2, 8, 200).log_prob(new).mean()) > -6 * 1.42 - 3.0


def test_tables_without_a_density(raises_with) -> None:  # type: ignore[no-untyped-def]
    rows = np.random.default_rng(0).normal(size=(30, 3))
    with raises_with(ValueError, "at least 5 rows", "n_samples = 4"):
        fit_table(rows[:4], list("abc"))
    rows[:, 1] = 7.0
    with raises_with(ValueError, "constant", "b", "leave"):
        fit_table(rows, list("abc"))


def test_columns_are_mapped_exactly() -> None:
    """Through a histogram or scaled: the slope is that of autograd, and the inverse is exact."""
    rng = np.random.default_rng(0)
    x = torch.tensor(np.stack([rng.integers(0, 5, 200) + rng.random(200), rng.normal(size=200)], 1))
    columns = Columns.fitted(x, torch.tensor([5, 0]))
    new = torch.cat([x, 40 * torch.randn(50, 2).double()]).requires_grad_()  # some are far outside
    y, slopes = columns.log_slopes(new)
    (gradient,) = torch.autograd.grad(y.sum(), new)
    torch.testing.assert_close(slopes, gradient.log())
    torch.testing.assert_close(columns.invert(y), new)
    for place in range(6):  # where bins end, P is the share of rows below
        end = columns.low + place * columns.width
        below = float((x[:, 0] < end[0]).double().mean())
        p = torch.sigmoid(columns.log_slopes(end[None])[0][0, 0])
        assert float(p) == pytest.approx(below, abs=0.01)
    z = torch.linspace(-9, 9, 40).double()[:, None].repeat(1, 2)
    torch.testing.assert_close(columns.log_slopes(columns.invert(z))[0], z)


def test_histograms_only_where_they_are_clearly_better(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stairs = rng.choice([0, 1, 7], 600, p=[0.7, 0.1, 0.2]) + rng.random(600)
    rows = np.stack([stairs, rng.normal(size=600)], 1)
    model = fit_table(rows, ["a", "b"], members=2, filters=4, max_steps=20)
    assert int(model.marginals.bins[0]) >= 8 and int(model.marginals.bins[1]) == 0
    model.save(tmp_path / "table")
    back, x = TableModel.load(tmp_path / "table"), torch.tensor(rows)
    assert torch.equal(back.log_prob(x), model.log_prob(x))
    assert torch.equal(back.sample(9, seed=1), model.sample(9, seed=1))
    drawn = model.sample(2000)[:, 0]
    assert float(((drawn > 2) & (drawn < 7)).double().mean()) < 0.03  # the gap
    assert float((drawn > 7).double().mean()) == pytest.approx(0.2, abs=0.05)
    axes = torch.meshgrid(torch.linspace(-3, 12, 601), torch.linspace(-6, 6, 121), indexing="ij")
    grid = torch.stack(axes, -1).reshape(-1, 2).double()
    mass = model.log_prob(grid).exp().sum() * 15 / 600 * 12 / 120
    assert float(mass) == pytest.approx(1, abs=0.02)


def test_weights_of_members_are_those_of_rows_they_had_not_seen() -> None:
    """Of two far clusters of Gaussian noise, Gaussian mixtures are the better members."""
    rng = np.random.default_rng(0)
    centres = 6 * rng.choice([-1, 1], (400, 1))
    rows, new = np.split(rng.normal(size=(400, 3)) * [1, 0.1, 2] + centres, 2)
    model = fit_table(rows, list("abc"), members=3, filters=2, max_steps=10)
    weights = model.log_weights.exp()
    assert float(weights.sum()) == pytest.approx(1) and float(weights[3:].sum()) > 0.5
    assert float(model.log_prob(torch.tensor(new)).mean()) == pytest.approx(model.held_out, abs=0.4)
